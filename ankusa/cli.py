"""The command line: `ankusa serve | demo | check-config | print-config | topics | replay | version` (spec 07).

Owns arguments, exit statuses and what is said on a terminal. Everything heavy is imported by the command that needs
it, so that `version` and `--help` answer at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ankusa.replay.fleet import Fleet
    from schemas.config import Config

OK, FAILED, USAGE_EXIT, CONFIG_EXIT, INTERRUPTED_EXIT = 0, 1, 2, 78, 130
"""78 is EX_CONFIG of sysexits.h, 130 what shells give a command ended by Ctrl-C."""

TOKEN_VARIABLE = "ANKUSA_TOKEN"  # noqa: S105 - the name of a variable, not a token


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status."""
    arguments = parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = arguments.command
    try:
        return command(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(prog="ankusa", description="Webhook infrastructure: accept, deliver, retry, replay.")
    commands = top.add_subparsers(metavar="COMMAND", required=True)

    command = commands.add_parser("serve", help="run a node")
    command.add_argument("--config", metavar="FILE", help="the YAML file (else $ANKUSA_CONFIG, else the demo source)")
    command.set_defaults(command=serve)

    command = commands.add_parser("demo", help="watch a node accept, deliver, retry, dead-letter and replay")
    command.add_argument("--once", action="store_true", help="end after the table; exit 0 only if the counts add up")
    command.set_defaults(command=demo)

    command = commands.add_parser("check-config", help="say all that is wrong with a file; exit 78 if anything is")
    command.add_argument("config", metavar="FILE")
    command.set_defaults(command=check_config)

    command = commands.add_parser("print-config", help="the effective configuration as YAML, secrets hidden")
    command.add_argument("config", metavar="FILE", nargs="?", default=argparse.SUPPRESS)
    command.add_argument("--config", metavar="FILE", help="the same (else $ANKUSA_CONFIG, else the demo source)")
    command.set_defaults(command=print_config)

    command = commands.add_parser("topics", help="make the topics of the Kafka host, or say what is wrong with them")
    command.add_argument("action", choices=("create", "check"))
    command.add_argument("--config", metavar="FILE", help="the YAML file (else $ANKUSA_CONFIG)")
    command.set_defaults(command=topics)

    _add_replay(commands.add_parser("replay", help="start a replay on one or more nodes, and watch it"))

    command = commands.add_parser("version", help="print the version")
    command.set_defaults(command=version)
    return top


def _add_replay(command: argparse.ArgumentParser) -> None:
    command.description = "Start one job on every node, all under one id. Starting it again with --job-id is safe."
    command.add_argument("--nodes", required=True, metavar="URL,…", help="admin addresses: http://a:4002,http://b:4002")
    command.add_argument("--kind", required=True, help="dlq")
    command.add_argument(
        "--filter",
        nargs="+",
        action="extend",
        default=[],
        metavar="K=V",
        help="source_id, id, since, until (unix ms), sink, error_class, tenants=a,b; all must match",
    )
    command.add_argument("--rate", type=int, metavar="N", help="items per second and node (default 1000)")
    command.add_argument(
        "--max-lag-ms", type=int, metavar="MS", help="wait while live traffic is later than this (2000)"
    )
    command.add_argument("--job-id", metavar="UUID", help="the id of an earlier try, to go on with it")
    command.add_argument("--token", help=f"a bearer token; better in ${TOKEN_VARIABLE}, which `ps` does not show")
    command.add_argument("--dry-run", action="store_true", help="move nothing, show what would be moved")
    command.add_argument("--watch", action="store_true", help="follow the jobs to their end")
    command.set_defaults(command=replay)


def serve(arguments: argparse.Namespace) -> int:
    """Run a node in the foreground until SIGTERM or Ctrl-C."""
    config = _load(arguments.config)
    if config is None:
        return CONFIG_EXIT
    from ankusa import serve as serving

    return serving.run(config, arguments.config)


def demo(arguments: argparse.Namespace) -> int:
    """Run the demonstration."""
    from ankusa.demo import story

    return story.run(once=arguments.once)


def check_config(arguments: argparse.Namespace) -> int:
    """Load a file and say what it holds, or every problem with its field."""
    config = _load(arguments.config)
    if config is None:
        return CONFIG_EXIT
    sinks = sum(len(source.sinks) for source in config.sources.values())
    admin = f"{config.admin.ip}:{config.admin.port}" if config.admin.enabled else "off"
    print(
        f"{arguments.config}: ok. sources {len(config.sources)}, sinks {sinks}, hooks on "
        f"{config.http.ip}:{config.http.port}{config.http.prefix}, admin {admin}, log {config.log.type}, "
        f"data in {config.node.data_dir}"
    )
    return OK


def print_config(arguments: argparse.Namespace) -> int:
    """The configuration as it would be used, defaults filled in, secrets hidden."""
    config = _load(arguments.config)
    if config is None:
        return CONFIG_EXIT
    import yaml

    from ankusa.redact import redact

    print(yaml.safe_dump(redact(config), sort_keys=False, allow_unicode=True), end="")
    return OK


def topics(arguments: argparse.Namespace) -> int:
    """Make what is missing, or only look; 0 when every topic is then as it must be."""
    config = _load(arguments.config)
    if config is None:
        return CONFIG_EXIT
    if config.log.type != "kafka":
        print("log.type: is local; only `log.type: kafka` has topics", file=sys.stderr)
        return CONFIG_EXIT
    from streams.kafka.topic_admin import ClusterError, TopicAdmin

    admin = TopicAdmin(config)
    try:
        admin.reach()
        if arguments.action == "create":
            for line in admin.create():
                print(line)
        wrong = admin.check()
    except ClusterError as error:
        print(f"kafka.brokers {', '.join(config.kafka.brokers)}: {error}", file=sys.stderr)
        return FAILED
    for one in wrong:
        print(one, file=sys.stderr)
    for note in admin.notes:
        print(note)
    if not wrong:
        print(f"the topics of {config.kafka.prefix} are as they must be")
    return FAILED if wrong else OK


def replay(arguments: argparse.Namespace) -> int:
    """Start a job on each node; 0 only if each has it started (with `--watch`: done)."""
    from ankusa import clock
    from ankusa.replay import fleet

    try:
        nodes = fleet.parse_nodes(arguments.nodes)
    except ValueError as error:
        return _usage(f"--nodes: {error}")
    try:
        body = fleet.parse_filters(arguments.filter)
    except ValueError as error:
        return _usage(f"--filter: {error}")
    taken = body.keys() & {"kind", "rate", "max_lag_ms", "job_id", "dry_run"}
    if taken:
        return _usage(f"--filter: {min(taken)}: is no filter; give it as --{min(taken).replace('_', '-')}")
    body["kind"] = arguments.kind
    for key, value in (("rate", arguments.rate), ("max_lag_ms", arguments.max_lag_ms)):
        if value is not None:
            body[key] = value
    if arguments.dry_run:
        body["dry_run"] = True
    else:
        body["job_id"] = arguments.job_id or clock.uuid7(clock.now_ms())
    return _replay(fleet.Fleet(nodes, arguments.token or os.environ.get(TOKEN_VARIABLE)), body, arguments.watch)


def _replay(nodes: Fleet, body: dict[str, Any], watch: bool) -> int:
    from rich.console import Console

    from ankusa.replay.fleet import succeeded
    from ankusa.replay.fleet_view import ReplayView, show_found, show_outcome, show_plans

    console = Console()
    reports = nodes.start(body)
    if "job_id" not in body:
        show_plans(console, reports)
        return OK if succeeded(reports, watched=False) else FAILED
    if any(report.may_have(body["job_id"]) for report in reports):
        console.print(f"job {body['job_id']}", highlight=False)
    show_found(console, reports, body["job_id"])
    if watch:
        try:
            with ReplayView(console) as view:
                reports = nodes.watch(reports, view)
        except KeyboardInterrupt:
            print("no longer watched; the jobs go on by themselves")
            return INTERRUPTED_EXIT
    show_outcome(console, reports)
    if succeeded(reports, watched=watch):
        return OK
    if all(report.refused for report in reports):
        print("nothing was started: mend what was refused and run it again", file=sys.stderr)
    else:
        print(f"not every node is well: run it again with --job-id {body['job_id']}", file=sys.stderr)
    return FAILED


def version(arguments: argparse.Namespace) -> int:
    """Print the version."""
    from importlib.metadata import version as installed

    print(f"ankusa {installed('ankusa-server')}")
    return OK


def _load(path: str | None) -> Config | None:
    """The configuration, or None with every problem said on stderr."""
    from ankusa.config import ConfigError, load

    try:
        return load(path, os.environ)
    except ConfigError as error:
        print("the configuration cannot be used:", *error.problems, sep="\n  ", file=sys.stderr)
        return None


def _usage(message: str) -> int:
    print(f"ankusa replay: {message}", file=sys.stderr)
    return USAGE_EXIT


if __name__ == "__main__":
    sys.exit(main())
