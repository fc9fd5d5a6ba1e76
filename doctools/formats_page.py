"""The page about formats: the table is the readers' own, what stands around it is what users ask."""

from __future__ import annotations

from collections.abc import Iterator

from doctools.markdown import cell, table


def formats() -> Iterator[str]:
    """The page about every layout that is read or written."""
    from drafttrace.tracer.commands.convert import Layout
    from drafttrace.tracer.dumps.hdf5_file import MOST_CHUNK
    from drafttrace.tracer.dumps.registry import folder_layouts, layouts

    yield "# Formats"
    yield ""
    yield (
        "Every command that reads a file takes any of these, as `PATH`, or `PATH#i` for sample i of a file or folder "
        "with several. A file is recognised by its content, never by its name; `--format ID` overrules that. Files are "
        "never executed: pickles are read by a reader that builds tensors and plain values and nothing else."
    )
    yield ""
    yield from table(
        "id",
        "what it is",
        "lives in",
        "`--layer-ids`",
        rows=[
            (
                "`drafttrace.trace/1`",
                "a trace that drafttrace recorded ([the format](trace-format.md))",
                "file",
                "",
            ),
            *((f"`{one.id}`", cell(one.title), "file", cell(one.ids)) for one in layouts().values()),
            *((f"`{one.id}`", cell(one.title), "folder", cell(one.ids)) for one in folder_layouts().values()),
        ],
    )
    yield "`drafttrace convert` writes: " + ", ".join(f"`{one.value}`" for one in Layout) + "."
    yield ""
    yield "## What a dump does not say"
    yield ""
    yield (
        "Most dumps do not name their layers. Say what you know with `--layer-ids` and `--hidden-size`. Plain ids such as "
        "`2,30,58` are in the numbering of the dump's own project, which the table above tells: O(id) is the output of "
        "layer id, which is B(id+1), and B(id) the stream that enters it. `--layer-ids B3,B31,B59` and `--layer-ids "
        "O2,O30,O58` say the same whatever the project. Where the table is empty, there are no slots, or the file names "
        "its own layers, which are believed."
    )
    yield ""
    yield (
        "SGLang's three forms are read as B(id): `layers.2` of a dumped pass is where B2 enters, and the states that "
        "`return_hidden_states` gives are those of `model.layers_to_capture`, which counts so, too. The ids in a draft's "
        "`eagle_config` are other numbers: for most classes of targets `[2, 30, 58]` there is O2,O30,O58, and [for some "
        "B2,B30,B58](sglang.md#how-layer-ids-become-boundaries); `drafttrace check` prints what they become."
    )
    yield ""
    yield (
        "Of an EAGLE server's passes (`FOLDER/target`, `FOLDER/draft`) the target's are read, of one tensor-parallel "
        "rank; the stages of a pipeline are joined. A pass names the boundaries of the layers that it holds, and no "
        "other: the last one, before the final norm, has a number where the numbers of the pass prove which layer is the "
        "last (its stream and what its MLP adds are what the norm takes in), or where the number of layers is told "
        "(`--target DIR`, or the other side of `diff`). With some of the layers, with experts, and on one of several "
        "ranks nothing proves it. Where it is known, the slots are the default B{2, n//2, n-3} if the pass holds these; "
        "else name them with `--layer-ids`. `inspect` shows which boundaries are there, and which process of the run is "
        "missing."
    )
    yield ""
    yield (
        "Of a folder with files of several kinds, those of one dump are its samples; `inspect`, `diff` and `convert` name "
        "the files that are left out."
    )
    yield ""
    yield (
        "A file of no known layout is read with `--slots A,B,C --tokens NAME`, and "
        "`--last NAME`, `--last-norm pre|post`, `--mask NAME` and `--boundaries B2,B30,B58` where it has them; `name[i]` "
        "picks entry i of a list or of the second axis. `inspect`, `diff` (of the side that is of no known layout), "
        "`convert`, `replay`, `reference` (of its `--from`) and `check` (of its `--dump`) take the same options."
    )
    yield ""
    yield "## Large files"
    yield ""
    yield (
        "States are read in blocks of rows, so a 50 GB dump needs no 50 GB of memory. Slots that stand side by side "
        "are read together where a block of all of them has up to 128 MiB, and one by one, slower, beyond that. What "
        "is compressed as a whole (`.gz`, a compressed `.npz`) is inflated once per command, into a temporary file in "
        "`$TMPDIR`; an array of an `.npz` only where it is read. Of a folder up to 8 GiB and 128 files are kept so; a "
        "file beyond that may be inflated once to be recognised, or found by its tokens, and once to be read. What "
        "can only be read whole has "
        "a limit, and the error names another way: a plain pickle that holds its arrays (1 GiB), JSON (512 MiB), a "
        f"chunk of an HDF5 file that is compressed with anything but gzip ({MOST_CHUNK >> 20} MiB)."
    )
