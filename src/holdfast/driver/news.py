"""What people are told of an instruction that was carried out: a line of history for those that are worth one."""

from __future__ import annotations

from holdfast.driver.history import History
from holdfast.master import events as ev
from holdfast.master import instructions as do


def tell_people(history: History, instruction: do.Instruction, answer: ev.Answer, seconds: float) -> None:
    match instruction, answer:
        case do.Activate(), ev.Activated():
            history.note(
                "activated",
                f"{len(instruction.slices)} slices on {instruction.container} at epoch {instruction.epoch}: "
                f"{answer.nbytes:,} bytes of copies, {answer.replayed:,} rows replayed",
                seconds=seconds,
                slices=len(instruction.slices),
                nbytes=answer.nbytes,
            )
        case do.Restore(), ev.Restored():
            history.note(
                "restored",
                f"{len(instruction.slices)} slices on {instruction.container} at epoch {instruction.epoch}: "
                f"{answer.nbytes:,} bytes loaded, {answer.replayed:,} rows replayed",
                seconds=seconds,
                slices=len(instruction.slices),
                nbytes=answer.nbytes,
            )
            for bad in sorted(set(answer.told)):
                history.note("corrupt", bad)
        case do.SendCopies(), ev.CopiesSent():
            for peer, reason in answer.failed.items():
                history.note("copy failed", f"{instruction.container} to {peer}: {reason}")
            history.note(
                "sent" if instruction.moving else "copied",
                f"{answer.rows:,} rows of {len(instruction.slices)} slices from {instruction.container} "
                f"to {', '.join(peer for peer, _ in instruction.to)} as of epoch {instruction.epoch}",
                seconds=answer.seconds,
                slices=len(instruction.slices),
                nbytes=answer.nbytes,
            )
        case do.SaveShards(), ev.ShardsSaved():
            for peer, reason in answer.failed.items():
                history.note("save failed", f"{instruction.container} to {peer}: {reason}")
            history.note(
                "saved",
                f"{answer.rows:,} rows of {len(answer.copies)} slices from {instruction.container} to the ring as of "
                f"epoch {instruction.epoch}: {min((count for _, count in answer.copies), default=0)} copies of every "
                "piece",
                seconds=answer.seconds,
                slices=len(answer.copies),
                nbytes=answer.nbytes,
            )
        case do.Gather(), ev.ReadySeen():
            for figures in answer.figures:
                history.note(
                    "gathered",
                    f"{len(figures.slices)} slices on {instruction.container} by {figures.structure}: "
                    f"{figures.nbytes:,} bytes from peers, {figures.replayed:,} rows replayed",
                    seconds=figures.seconds,
                    slices=len(figures.slices),
                    nbytes=figures.nbytes,
                )
        case do.WriteCheckpoint(), ev.CheckpointWritten():
            history.note(
                "written",
                f"{answer.file} with {len(instruction.slices)} slices",
                seconds=seconds,
                slices=len(instruction.slices),
                nbytes=answer.nbytes,
            )
