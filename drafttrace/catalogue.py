"""Every cause that drafttrace can name: what is wrong, how a comparison shows it, what puts it right, who met it.

The ids are the closed vocabulary of ``findings[].id`` (:mod:`drafttrace.compare.vocabulary`). The signature says what the
finding rests on; the remedy is the general one, the finding itself prints the line for the case at hand. Cases are public
threads about a fault of that kind, written ``project#number``.
"""

from __future__ import annotations

from dataclasses import dataclass

from drafttrace.compare.vocabulary import CLASS_OF

PROJECTS = {
    "sglang": "sgl-project/sglang",
    "SpecForge": "sgl-project/SpecForge",
    "vllm": "vllm-project/vllm",
    "vllm-ascend": "vllm-project/vllm-ascend",
    "speculators": "vllm-project/speculators",
    "EAGLE": "SafeAILab/EAGLE",
    "BaldEagle": "NickL77/BaldEagle",
    "TorchSpec": "lightseekorg/TorchSpec",
    "tokenspeed": "lightseekorg/tokenspeed",
    "Automodel": "NVIDIA-NeMo/Automodel",
    "verl-SpeCo": "verl-project/verl-SpeCo",
}
"""Where the threads of a project are; a project that is not here is named without a link."""


@dataclass(frozen=True)
class Cause:
    """One entry. kind: its class in the vocabulary."""

    id: str
    kind: str
    what: str
    signature: str
    remedy: str
    cases: tuple[str, ...] = ()


def _cause(name: str, what: str, signature: str, remedy: str, *cases: str) -> Cause:
    return Cause(name, CLASS_OF[name], what, signature, remedy, cases)


_IDS = "Set the layer ids inside eagle_config of the draft's config.json as the finding prints them, and restart."
_ENTRIES = (
    _cause(
        "slot-shift",
        "The slots are the reference's, moved by k: usually the embedding, which training fed first, is missing.",
        "Slot i of the server is slot i+k of the reference: the slot × slot matrix is small on an off-diagonal.",
        _IDS,
        "EAGLE#239",
        "BaldEagle#18",
    ),
    _cause(
        "slot-permutation",
        "The same boundaries in another order.",
        "The slot × slot matrix is a permutation.",
        "Order the slots alike on both sides; SGLang always hands them over in ascending order.",
        "speculators#366",
    ),
    _cause(
        "boundary-offset",
        "Slots are one boundary early or late: one side numbers layer inputs, the other layer outputs.",
        "The best boundary of a slot is k±1 with a clear margin, while its plain cosine to the right one is still high.",
        _IDS,
        "sglang#25454",
        "vllm#43671",
        "TorchSpec#87",
    ),
    _cause(
        "wrong-boundary",
        "A slot is some other boundary of the target.",
        "The layer sweep places the slot at another boundary than the reference's.",
        _IDS,
        "tokenspeed#526",
    ),
    _cause(
        "default-wiring",
        "The server found no layer ids where it looks for them and fell back to its default, B2, B(n/2), B(n-3).",
        "The trace says that the ids came from the default, and the slots differ.",
        "Put the ids where SGLang reads them: inside eagle_config. At the top level they are ignored without a word.",
        "vllm#50170",
    ),
    _cause(
        "slot-count",
        "Server and reference have different numbers of slots, or a width that is no multiple of the hidden size.",
        "Counts and widths.",
        "Name as many layer ids as fc has slots.",
        "sglang#32334",
        "vllm#46788",
    ),
    _cause(
        "fc-not-called",
        "The draft has fc, and it never ran: it works on the target's last state.",
        "The probe on fc fired 0 times. The accept length is often exactly 1.00.",
        "Start the server with --speculative-algorithm EAGLE3, not EAGLE.",
        "sglang#21272",
    ),
    _cause(
        "last-not-last",
        "What stands in the place of the last state is an inner layer, or a boundary early.",
        "The layer sweep places it below B(n); its next-token loss is far too high under both norm variants.",
        "Dump the state after the last layer; training targets that were made from the other one are wrong.",
        "speculators#705",
        "TorchSpec#87",
    ),
    _cause(
        "norm-missing",
        "A norm that training applied is not applied in serving.",
        "After a fitted gain per channel the directions agree; the row norms vary where they should be constant.",
        "Use a server that applies it, or set the switch that does: fc_norm, norm_before_fc, norm_output.",
        "vllm#38111",
        "SpecForge#879",
    ),
    _cause(
        "norm-extra",
        "A norm is applied that training did not apply.",
        "As for norm-missing, the other way round: row norms are constant where they should vary.",
        "Compare the norm switches of the served config with the trainer's.",
        "speculators#313",
        "vllm#46075",
    ),
    _cause(
        "norm-gain",
        "The norm's weight is read as w-1 or 1+w, or applied twice.",
        "The fitted gain per channel is w-1, w+1 or w squared of a norm weight w of the target, which the finding names.",
        "Use the norm class of the target (Gemma's multiplies by 1+w).",
        "speculators#1090",
    ),
    _cause(
        "residual-missing",
        "A slot holds what a layer added to the residual stream, not the stream itself.",
        "Adding the boundary before it gives the reference.",
        "Capture hidden + residual where the model keeps the two apart.",
        "vllm#14464",
        "vllm#11672",
    ),
    _cause(
        "scale",
        "A slot is the right one times a number.",
        "One scalar fits and takes the difference away.",
        "Look for a scale of the embedding (the root of the hidden size) or of the residual that one side leaves out.",
    ),
    _cause(
        "weights-missing",
        "A tensor of the draft's checkpoint was never loaded, or a parameter was never filled.",
        "drafttrace check: names of checkpoint and model do not meet; a parameter still holds its initial value.",
        "Rename the tensors to what the server's class expects; drafttrace check lists them.",
        "sglang#27829",
    ),
    _cause(
        "weights-replaced",
        "A weight of the draft is the target's.",
        "The tensor's hash is that of the target's tensor.",
        "Keep the server from sharing embedding or head where the draft brings its own.",
        "vllm#27732",
    ),
    _cause(
        "weights-unused",
        "The checkpoint holds a tensor that nothing reads.",
        "drafttrace check lists it.",
        "Usually harmless; where it is a norm or a head, the server's class does not know it.",
        "speculators#1114",
    ),
    _cause(
        "vocab-map-missing",
        "The draft's vocabulary is smaller than the target's and nothing maps it.",
        "drafttrace check: head and vocabulary sizes differ, and the checkpoint has no d2t.",
        "Export d2t with the draft.",
        "vllm#18909",
        "Automodel#2447",
    ),
    _cause(
        "vocab-map-offset",
        "The map holds absolute ids where offsets are expected, or offsets where ids are.",
        "Read as offsets, d2t points outside the vocabulary or at ids out of order.",
        "Store offsets: target id = draft id + d2t.",
        "verl-SpeCo#67",
    ),
    _cause(
        "vocab-map-range",
        "The map points outside the target's vocabulary.",
        "drafttrace check; or drafted ids that the target cannot say.",
        "Make d2t anew from the tokenizer that the target is served with.",
        "verl-SpeCo#67",
    ),
    _cause(
        "vocab-coverage",
        "Tokens that the target says often are not in the draft's vocabulary: it can never propose them.",
        "The share of the text that the draft's vocabulary does not hold.",
        "Choose the draft vocabulary by counting tokens of the served traffic.",
        "verl-SpeCo#66",
    ),
    _cause(
        "position-seam",
        "The positions of the draft's decode steps do not follow those of its extend pass.",
        "The positions in the draft's row table jump at the seam.",
        "Update the server: the draft worker's position offset is off.",
        "sglang#25015",
    ),
    _cause(
        "rope-mismatch",
        "Rotary embeddings are parametrised otherwise than in training.",
        "The configs differ in rope_theta or rope_scaling; replayed with the target's base, the draft predicts better.",
        "Give the draft's config the rope parameters of training.",
        "speculators#574",
    ),
    _cause(
        "window-mismatch",
        "A sliding window on one side only.",
        "Equal below a length, different above it.",
        "Set sliding_window and the layer types as in training.",
        "vllm#40898",
    ),
    _cause(
        "token-shift",
        "States are paired with the tokens of another position.",
        "Rows agree when the reference is moved by -2 to +2.",
        "Shift ids and states together in the trainer's loader.",
        "SpecForge#448",
        "SpecForge#473",
    ),
    _cause(
        "mask-shift",
        "The loss mask is off by one against the tokens.",
        "The mask's edges against the answer's first and last token.",
        "Row t predicts token t+2: shift the mask with the ids.",
        "SpecForge#885",
    ),
    _cause(
        "prefix-gap",
        "The first rows are missing because the prefix cache supplied them. Nothing is wrong with the model.",
        "The left side starts at a position above 0.",
        "drafttrace record gives every request its own part of the cache; use it to compare all rows.",
        "vllm#44485",
    ),
    _cause(
        "cold-warm",
        "The same prompt gives other states once its prefix is cached.",
        "Two traces of one prompt differ, and only one of them found its prefix in the cache.",
        "Serve with --disable-radix-cache to confirm; then look at what the cache hands back.",
        "sglang#10846",
    ),
    _cause(
        "decay",
        "The same prompt gives other states, or a shorter accept length, the longer the server runs.",
        "Two traces of one prompt differ, and nothing that they record was different about the runs.",
        "Let drafttrace watch date the first run that differs; restart to confirm.",
        "sglang#32176",
    ),
    _cause(
        "rank-divergence",
        "Ranks hold different values of a tensor that should be the same on all.",
        "The row hashes of the ranks differ.",
        "Compare with --tp-size 1; look for an operation that runs on one rank only.",
        "vllm#50158",
        "sglang#31071",
    ),
    _cause(
        "partial-sum",
        "A rank's slot holds only its part of a sum.",
        "The sum over the ranks' rows is the reference (record with serve --all-ranks).",
        "An all-reduce is missing between the capture point and the layer: capture after it.",
        "sglang#28343",
    ),
    _cause(
        "rows-by-rank",
        "Blocks of rows are permuted, or multiplied, by rank.",
        "Rows match the reference block by block in another order.",
        "Look at what gathers the rows of the ranks.",
        "sglang#20492",
    ),
    _cause(
        "stale-rows",
        "Rows hold the values of an earlier round, or of an earlier graph replay.",
        "A row that differs equals an earlier row bit for bit.",
        "Compare with --disable-cuda-graph; look for a copy into a graph's buffer that is skipped.",
        "sglang#21424",
    ),
    _cause(
        "cross-request",
        "Rows belong to another request.",
        "A row that differs equals a row of another request's trace.",
        "Compare at batch size 1; look at how the batch's rows are indexed (by stride and accept count).",
        "sglang#26163",
    ),
    _cause(
        "padding-leak",
        "A live row equals a padded one.",
        "A row equals, bit for bit, the first padding row of its own pass, whose hash the trace keeps.",
        "Cut the batch to its live rows before the states are handed over.",
        "vllm#43810",
    ),
    _cause(
        "zero-rows",
        "Rows are all zero.",
        "Every channel of the row is 0.",
        "Look for a buffer that was allocated and never filled.",
    ),
    _cause(
        "constant-rows",
        "The same row stands everywhere.",
        "Rows of different tokens are equal bit for bit.",
        "A host copy during graph replay shows only the last tensor: read a device buffer after the replay.",
    ),
    _cause(
        "graph-eager",
        "The states differ only when CUDA graphs are replayed.",
        "Two traces of one prompt differ, one of them recorded with --disable-cuda-graph.",
        "Something in the captured graph reads a buffer that is not refreshed.",
        "sglang#22836",
        "vllm#20190",
    ),
    _cause(
        "nan-inf",
        "Rows hold NaN or infinity.",
        "Not every channel of the row is finite.",
        "Look at the first position that is not finite: overflow in fp16, or a read of memory that nobody wrote.",
        "EAGLE#69",
        "sglang#27883",
    ),
    _cause(
        "dtype-reinterpretation",
        "Bytes of bf16 are read as fp16, or the reverse.",
        "Reinterpreting the stored bytes gives the reference.",
        "State the number format where the bytes are read.",
        "ssd#18",
    ),
    _cause(
        "rotation",
        "States are the right ones in another basis.",
        "Norms agree, cosine is about 0, and an orthogonal map fitted on some rows fits the others.",
        "Undo the rotation of the quantisation before the states are handed over.",
        "vllm-ascend#7038",
    ),
    _cause(
        "quantization-noise",
        "A small, unstructured, even difference. Not a wiring fault.",
        "Above the limit for equal, below the limit for wrong; the right boundary is still the only one that fits.",
        "Record the same prompt twice and give both to --noise to measure the floor.",
        "speculators#461",
    ),
    _cause(
        "modality-span",
        "Only the rows of image (or audio) tokens differ.",
        "All rows that differ lie in such spans.",
        "Feed the same picture through the same processor on both sides.",
        "speculators#606",
    ),
    _cause(
        "template-divergence",
        "The two sides hold different tokens.",
        "The first token that differs is shown, as text where a tokenizer is at hand.",
        "Send the dump's own ids (drafttrace record --from-dump), or use the trainer's chat template.",
    ),
    _cause(
        "no-overlap",
        "No row of one side belongs to a row of the other.",
        "Nothing could be paired.",
        "Record the prompt of this very sample; give PATH#i where a dump holds several.",
    ),
    _cause(
        "downstream",
        "The hidden states are right; the fault is downstream of fc.",
        "Slots and fc_in match, and the accept length is low all the same.",
        "Look at weights, vocabulary map, positions and recycled norm: drafttrace check, drafttrace replay.",
        "sglang#27829",
    ),
    _cause(
        "none",
        "Everything that was compared matches.",
        "All slots equal, nothing odd inside the trace.",
        "Compare the expected accept length with the observed one: 1 + a1 + a1·a2 + ... from the step accuracies.",
        "SpecForge#128",
        "EAGLE#276",
    ),
    _cause(
        "unexplained",
        "The states differ, and no known cause fits.",
        "A mismatch that no other finding explains.",
        "Look at the worst rows in the HTML report, and open an issue with report.md: it may be a new kind.",
    ),
    _cause(
        "probe-silent",
        "A tap of the recorder never fired.",
        "The trace's table of probes.",
        "Run drafttrace doctor: it says which hook does not fit the installed SGLang.",
    ),
    _cause(
        "rows-dropped",
        "The recorder dropped rows because a budget was used up.",
        "The trace counts them.",
        "Record fewer tokens or boundaries, or raise the budgets of drafttrace serve.",
    ),
    _cause(
        "trace-incomplete",
        "The trace ends before the request did.",
        "Its complete attribute is false; it says why.",
        "Record again; the server's log says more.",
    ),
)

CAUSES = {entry.id: entry for entry in _ENTRIES}
"""All causes by id, in the order of the documentation."""
