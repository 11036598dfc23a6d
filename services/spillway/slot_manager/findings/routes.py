"""``/v1/findings``."""

from fastapi import APIRouter

from spillway.slot_manager.dependencies import NoQuery, Watch
from spillway.slot_manager.findings.models import FindingList, FindingView, Unknown
from spillway.watch.findings import Finding

router = APIRouter(prefix="/findings", tags=["findings"])


@router.get("", operation_id="list_findings", dependencies=[NoQuery])
async def list_findings(watch: Watch) -> FindingList:
    """List what is wrong just now, the worst first, each with cause and remedy: what the overview
    shows.
    """
    view = await watch.see()
    return FindingList(
        findings=[_view(finding) for finding in view.findings],
        unknown=[Unknown(code=code, subject=subject) for code, subject in sorted(view.unknown())],
    )


def _view(finding: Finding) -> FindingView:
    return FindingView(
        severity=finding.severity,
        code=finding.code,
        subject=finding.subject,
        source=finding.source or None,
        slot=finding.slot,
        subscription=finding.subscription,
        title=finding.title,
        detail=finding.detail,
        remedy=finding.remedy,
        page=finding.link,
        since=finding.since,
    )
