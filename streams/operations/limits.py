"""Ingest limits as the admin API shows them: which of a tenant's holds, and where it comes from."""

from __future__ import annotations

from ankusa.admission import Admission
from ankusa.operations import Tenants
from schemas.api import Limit, Limits, TenantLimit


def listing(admission: Admission, tenants: Tenants) -> Limits:
    """The default, and every tenant with a limit of its own."""
    default = admission.default
    named = admission.overrides.keys() | admission.configured.keys()
    return Limits(
        default=None if default is None else Limit(rate=default.rate, burst=default.burst),
        tenants=[one(admission, name) for name in sorted(named) if tenants is None or name in tenants],
    )


def one(admission: Admission, tenant_id: str) -> TenantLimit:
    limit, source = admission.limit_of(tenant_id)
    figures = {} if limit is None else {"rate": limit.rate, "burst": limit.burst}
    return TenantLimit.model_validate({"tenant": tenant_id, "rate": None, "burst": None, "source": source} | figures)
