"""Claims that only training decides: small networks, several seeds, the same budget for every side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from regard.claims.claims import Chart, ClaimOptions, Outcome, Verdict
from regard.claims.contest import Contest, Found, Longer
from regard.claims.sides import RESNET, SWIN, VIT, Acceptability, Pictures, Recall
from regard.claims.translation import BY_LENGTH, CONVOLUTION, RNN, TRANSFORMER, Translation, Values, of_length
from regard.layers.recurrent import Kind

DISTANCES = (5, 10, 20)
KINDS: tuple[Kind, ...] = ("rnn", "gru", "lstm")
USUAL = BY_LENGTH[1]
LENGTHS = [of_length("exact", words) for words in BY_LENGTH]
EXACT, ALIGNED = of_length("exact", USUAL), of_length("aligned", USUAL)
LONG = "not guided (twice the steps)"
COUNTS = (100, 1000)
LEARNT = 0.5  # a side that gets less than this right has not learnt its task
MATTERS = 0.03  # a smaller difference of shares is of no use to anyone
RNN_RATE, TRANSFORMER_RATE = 1e-2, 5e-3
ONE_VECTOR: Values = (*RNN, ("attention", "none"))
ONE_HEAD: Values = (*TRANSFORMER, ("heads", 1))
CONVOLUTIONS: Values = (("width", 64), ("depth", 2), ("kernel", 3), ("longest", 32))
FLOPS = 3e10  # of each training of the three ways

attending, one_vector = (Translation("seq2seq", values, RNN_RATE) for values in (RNN, ONE_VECTOR))
four_heads, one_head = (Translation("transformer", values, TRANSFORMER_RATE) for values in (TRANSFORMER, ONE_HEAD))

RECALL = Contest({kind.upper(): Recall(kind, DISTANCES) for kind in KINDS}, 250)
CONTEXT = Contest(
    {
        "attention": attending,
        "one context vector": one_vector,
        "attention (backwards)": replace(attending, backwards=True),
        "one context vector (backwards)": replace(one_vector, backwards=True),
    },
    200,
)
GUIDANCE = Contest(
    {"guided": replace(attending, guide=0.1), "not guided": attending, LONG: Longer(attending, 2)},
    200,
)
HARD = Contest({"soft": attending, "hard": replace(attending, values=(*RNN, ("reading", "hard")))}, 200)
SCALING = Contest({"divided by √d": one_head, "not divided": replace(one_head, scaled=False)}, 400)
HEADS = Contest({"4 heads": four_heads, "1 head": one_head}, 400)
POSITIONS = Contest(
    {
        "sinusoidal": four_heads,
        **{
            kind: replace(four_heads, values=(*TRANSFORMER, ("positions", kind)))
            for kind in ("learned", "rotary", "linear")
        },
        "concatenated": replace(four_heads, values=(*TRANSFORMER, ("join_positions", "concatenate"))),
    },
    400,
)
THREE_WAYS = Contest(
    {
        "recurrent": replace(attending, flops=FLOPS),
        "convolutional": Translation(CONVOLUTION, CONVOLUTIONS, TRANSFORMER_RATE, flops=FLOPS),
        "attention": replace(four_heads, flops=FLOPS),
    },
    1000,
)
DATA = Contest({"ResNet": Pictures("resnet", RESNET, COUNTS), "ViT": Pictures("vit", VIT, COUNTS)}, 150)
IMAGES = Contest({"Swin": Pictures("swin", SWIN, COUNTS[-1:]), "ViT": Pictures("vit", VIT, COUNTS[-1:])}, 150)
PRETRAINING = Contest(
    {
        f"{title} ({'pre-trained' if pretrained else 'from scratch'})": Acceptability(model, pretrained)
        for model, title in (("bert", "BERT"), ("gpt", "GPT"))
        for pretrained in (True, False)
    },
    400,
)


def gradient_flow_trained(options: ClaimOptions) -> Verdict:
    """Trained RNNs lose the gradient over many steps and do not learn from far back; gated ones do."""
    found, far = RECALL.run(options), DISTANCES[-1]
    recalled = f"recalled, {far} steps"
    words = f"the symbol {far} steps back is recalled by {found.told(recalled)}; gradients that arrive there: " + (
        found.told(f"gradient, {far} steps")
    )
    outcome = _all_better(found, (("GRU", "RNN"), ("LSTM", "RNN")), recalled)
    measures = [f"recalled, {distance} steps" for distance in DISTANCES]
    return _verdict(found, outcome, words, measures, "Which symbol came first?", "share recalled")


def fixed_context(options: ClaimOptions) -> Verdict:
    """One vector for a whole sentence is a bottleneck: attention is better, and more so for long sentences."""
    found = CONTEXT.run(options)
    ways = (("attention", "one context vector"), ("attention (backwards)", "one context vector (backwards)"))
    outcome = _all_better(found, ways, EXACT)
    words = "; ".join(f"{measure}: {found.told(measure)}" for measure in LENGTHS)
    return _verdict(found, outcome, words, LENGTHS, "One context vector, or attention", "share translated exactly")


def guidance(options: ClaimOptions) -> Verdict:
    """Attention that nobody tells where to look translates as well as attention that is told."""
    found = GUIDANCE.run(options)
    words = f"{EXACT}: {found.told(EXACT)}"
    least = max(LEARNT, found.mean("guided", EXACT) - MATTERS)
    if found.mean("not guided", EXACT) >= least:
        return _verdict(found, "holds", words, [EXACT, ALIGNED])
    if found.mean(LONG, EXACT) >= least:
        words = f"on the budget: attention that is told where to look learns faster, and no better; {words}"
    return _verdict(found, "depends", words, [EXACT, ALIGNED])


def alignment(options: ClaimOptions) -> Verdict:
    """Attention learns to align words, crossings too, from translations alone."""
    found = GUIDANCE.run(options)
    holds = min(found.values(LONG, ALIGNED)) > 0.9
    words = f"the heaviest source word is the one that is translated: {found.told(ALIGNED)}"
    return _verdict(found, "holds" if holds else "does not hold", words, [ALIGNED])


def positions(options: ClaimOptions) -> Verdict:
    """Linear positions are bad, because they grow with the length; sinusoidal ones are not."""
    found = POSITIONS.run(options)
    words = f"{EXACT}: {found.told(EXACT)}; longer than any in training, {LENGTHS[-1]}: {found.told(LENGTHS[-1])}"
    return _verdict(found, found.outcome("sinusoidal", EXACT, MATTERS), words, LENGTHS)


def three_ways_trained(options: ClaimOptions) -> Verdict:
    """At equal cost attention learns best, and convolution and recurrence fall behind with the length."""
    found = THREE_WAYS.run(options)
    cost = f"steps {found.told('steps')}; CPU seconds {found.told('seconds')}"
    words = "; ".join(f"{measure}: {found.told(measure)}" for measure in LENGTHS[:2])
    return _verdict(found, found.outcome("attention", EXACT, MATTERS), f"{words}; {cost}", LENGTHS)


def little_data(options: ClaimOptions) -> Verdict:
    """With little data a ResNet is better than a ViT, and the gap closes with more."""
    found = DATA.run(options)
    measures = [f"accuracy, {count} images" for count in COUNTS]
    words = "; ".join(f"{count} images: {found.told(name)}" for count, name in zip(COUNTS, measures, strict=True))
    outcome = _all_better(found, [("ResNet", "ViT")], measures[0])
    return _verdict(found, outcome, words, measures, "Accuracy by the number of images", "accuracy")


def swin_or_vit(options: ClaimOptions) -> Verdict:
    """A Swin is more accurate than a ViT that was trained alike."""
    found = IMAGES.run(options)
    accuracy, seconds = "accuracy, 1000 images", "seconds, 1000 images"
    words = f"{found.told(accuracy)}; CPU seconds {found.told(seconds)}"
    return _verdict(found, found.outcome("Swin", accuracy, MATTERS), words, [accuracy])


def pretraining(options: ClaimOptions) -> Verdict:
    """Pre-training without labels helps where labels are few: BERT's and GPT's."""
    found, judged = PRETRAINING.run(options), "judged rightly"
    pairs = [(f"{model} (pre-trained)", f"{model} (from scratch)") for model in ("BERT", "GPT")]
    return _verdict(found, _all_better(found, pairs, judged), found.told(judged), [judged])


def _best(contest: Contest, better: str, options: ClaimOptions) -> Verdict:
    """A side translates more sentences exactly than every other."""
    found = contest.run(options)
    return _verdict(found, found.outcome(better, EXACT, MATTERS), found.told(EXACT), [EXACT])


hard_attention = partial(_best, HARD, "soft")  # against hard attention, which draws one place
scaling_trained = partial(_best, SCALING, "divided by √d")
many_heads = partial(_best, HEADS, "4 heads")  # against one of full width


def _all_better(found: Found, pairs: Iterable[tuple[str, str]], measure: str) -> Outcome:
    """On the claim that the first of each pair is better: all are, some second is better, or the seeds cannot tell."""
    pairs = list(pairs)
    if all(found.beats(first, second, measure, MATTERS) for first, second in pairs):
        return "holds"
    return "does not hold" if any(found.beats(b, a, measure, MATTERS) for a, b in pairs) else "depends"


def _verdict(
    found: Found, outcome: Outcome, words: str, measures: Sequence[str], title: str = "", y_label: str = "share"
) -> Verdict:
    """A verdict with all that was measured, and a chart of these measures."""
    if outcome == "depends" and not words.startswith("on "):
        words = f"undecided at this budget: {words}"
    chart = Chart(
        title or "Mean and spread of the seeds", "measured", ("mean",), "", y_label,
        by="side", spread="spread", log_x=False, only=tuple(measures),
    )  # fmt: skip
    return Verdict(outcome, words, found.rows, chart)
