from collections.abc import Mapping

from spillway._kernels.apply.change_group import ChangeGroup
from spillway._kernels.apply.key_set import KeySet
from spillway.apply.changes import SourceRelation, Step, StepPlan

def steps(
    group: ChangeGroup, plans: Mapping[SourceRelation, StepPlan], touches: KeySet | None = None
) -> list[Step] | None: ...
