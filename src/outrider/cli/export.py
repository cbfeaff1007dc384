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
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Write a trained head in another project's format.

    Heads in any format that Outrider reads can be written, as long as they say which layers of the target they read.

    Args:
        head: Folder of the head.
        to: The format: speculators (vLLM), specforge (also SGLang), eagle (its authors'), or outrider, packed.
        output_folder: Gets config.json and model.safetensors.
        verifier: The target's Hugging Face name or folder; speculators asks for it.
        four_bits: All matrices of outrider's format in four bits.
        as_json: Print one JSON object, errors included.
    """
    from outrider.heads.checkpoint import OWN, PACKED, SMALL, write_head
    from outrider.heads.formats.base import export as write
    from outrider.heads.loading import read_head

    if four_bits and to != OWN:
        raise ConfigError(f"--four-bits is for the format {OWN} alone; {to} keeps plain numbers")
    found = read_head(head)
    console = output.side() if as_json else output.screen()
    if to == OWN:
        write_head(output_folder, found, SMALL if four_bits else PACKED)
        size = sum(file.stat().st_size for file in output_folder.iterdir())
        console.print(f"{head.name}: a head of the kind {found.kind}, packed into {size / 1e6:.1f} MB")
        if as_json:
            output.write_json({"kind": found.kind, "to": to, "output": str(output_folder), "bytes": size})
        return 0
    named = dataclasses.replace(found, target=dataclasses.replace(found.target, name=verifier))
    made = write(named, to, output_folder)
    if as_json:
        output.write_json({"kind": found.kind, "to": to, "output": str(output_folder), "left_out": list(made.left_out)})
        return 0
    console.print(f"{head.name}: a head of the kind {found.kind}, written as {to} to {output_folder}")
    for each in made.left_out:
        console.print(f"left out, for {to} has no place for it: {each}")
    return 0
