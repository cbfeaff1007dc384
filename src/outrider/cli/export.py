"""``outrider export``: write a trained head in another project's format."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from outrider.cli import output
from outrider.errors import ConfigError


def export(
    head: Path,
    /,
    *,
    to: Annotated[str, Parameter(metavar="NAME")],
    output_folder: Annotated[Path, Parameter(name="--output", metavar="FOLDER")],
    verifier: Annotated[str, Parameter(metavar="NAME")] = "",
    four_bits: Annotated[bool, Parameter(negative="")] = False,
    as_json: Annotated[bool, output.AS_JSON] = False,
) -> int:
    """Write a trained head in another project's format.

    The head may be in any format that Outrider reads, if it says which layers of the target it uses.

    Args:
        head: Folder of the head.
        to: Format: speculators (vLLM), specforge (SpecForge, SGLang), eagle (EAGLE's authors), or outrider (packed).
        output_folder: Folder for config.json and model.safetensors.
        verifier: Hub id or folder of the target; required for speculators.
        four_bits: Pack all matrices in four bits; for the format outrider.
        as_json: Print one JSON object instead; errors too.
    """
    from outrider.heads.checkpoint import OWN, PACKED, SMALL, write_head
    from outrider.heads.formats.base import export as write
    from outrider.heads.loading import read_head

    if four_bits and to != OWN:
        raise ConfigError(f"--four-bits works only with --to {OWN}; {to} stores full-precision weights")
    found = read_head(head)
    console = output.side() if as_json else output.screen()
    if to == OWN:
        write_head(output_folder, found, SMALL if four_bits else PACKED)
        size = sum(file.stat().st_size for file in output_folder.iterdir())
        console.print(f"{head.name}: {found.kind} head, packed into {size / 1e6:.1f} MB")
        if as_json:
            output.write_json({"kind": found.kind, "to": to, "output": str(output_folder), "bytes": size})
        return 0
    named = dataclasses.replace(found, target=dataclasses.replace(found.target, name=verifier))
    made = write(named, to, output_folder)
    if as_json:
        output.write_json({"kind": found.kind, "to": to, "output": str(output_folder), "left_out": list(made.left_out)})
        return 0
    console.print(f"{head.name}: {found.kind} head, written as {to} to {output_folder}")
    for each in made.left_out:
        console.print(f"left out, because {to} cannot store it: {each}")
    return 0
