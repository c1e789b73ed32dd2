"""Which jobs stay: the unfinished and the newest finished ones. Owns the dropping of the others, and nothing else."""

from __future__ import annotations

from ankusa.core import job as jobs
from ankusa.replay.ports import ReplayHost
from schemas.records import JobDrop


async def drop_surplus(host: ReplayHost) -> None:
    """Drop finished jobs past the number that is kept, durably. Raises StoreError."""
    for job_id in jobs.surplus(host.jobs()):
        await host.command(JobDrop(job_id, host.now()))
