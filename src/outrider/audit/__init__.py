"""Proof, on the user's own model and settings, that speculation changes nothing."""

from outrider.audit.parts import Parts
from outrider.audit.prompts import audit_prompts
from outrider.audit.report import CheckResult, FaultResult, Report
from outrider.audit.run import audit, check_lossless
from outrider.audit.stages import Effort

__all__ = [
    "CheckResult",
    "Effort",
    "FaultResult",
    "Parts",
    "Report",
    "audit",
    "audit_prompts",
    "check_lossless",
]
