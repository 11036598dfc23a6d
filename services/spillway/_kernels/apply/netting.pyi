from collections.abc import Mapping

from spillway._kernels.apply.change_group import ChangeGroup
from spillway.apply.changes import SourceRelation, Step, StepPlan

def steps(group: ChangeGroup, plans: Mapping[SourceRelation, StepPlan]) -> list[Step] | None: ...
