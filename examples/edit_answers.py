"""Change ten answers of a trained model by a small codebook in front of one layer; measure all others."""

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import truestep as ts

torch.manual_seed(7)
NUM_RELATIONS, NUM_SUBJECTS, NUM_ANSWERS, NUM_PHRASINGS = 5, 40, 60, 4
DIM, RADIUS = 64, 0.6

# --- Facts: "the river of Z17 is ...", each asked for in four phrasings. Words are numbers. ---

facts = list(itertools.product(range(NUM_RELATIONS), range(NUM_SUBJECTS)))
known = torch.randint(NUM_ANSWERS, (len(facts),))


def phrase(relation: int, subject: int, phrasing: int) -> list[int]:
    """Return a question of four words: two that only belong to the phrasing, the relation and the subject."""
    first = NUM_RELATIONS + NUM_SUBJECTS + 2 * phrasing
    words = [relation, NUM_RELATIONS + subject]
    if phrasing % 2:
        words.reverse()
    return [first, words[0], first + 1, words[1]]


questions = torch.tensor([phrase(*fact, way) for fact in facts for way in range(NUM_PHRASINGS)])
answers = known.repeat_interleave(NUM_PHRASINGS)


class Answerer(nn.Module):
    """A small transformer; the answer is read at a last token that every question gets."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(NUM_RELATIONS + NUM_SUBJECTS + 2 * NUM_PHRASINGS, DIM)
        self.last = nn.Parameter(torch.randn(1, 1, DIM) / 10)
        self.places = nn.Parameter(torch.randn(5, DIM) / 10)
        self.blocks = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(DIM, 4, 2 * DIM, dropout=0.0, batch_first=True, norm_first=True)
                for _ in range(2)
            )
        )
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, NUM_ANSWERS)

    def forward(self, asked: Tensor) -> Tensor:
        words = torch.cat([self.words(asked), self.last.expand(len(asked), 1, DIM)], dim=1)
        logits: Tensor = self.head(self.norm(self.blocks(words + self.places)[:, -1]))
        return logits


class Codebook(nn.Module):
    """Stands in front of a layer: a last token within reach of a key is replaced by that key's value.

    Every value is a parameter of its own: a new key leaves the others, and their optimizers, as they are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.ParameterList()
        self.answers: list[int] = []
        self.register_buffer("keys", torch.empty(0, DIM))
        self.register_buffer("radii", torch.empty(0))
        self.seen = torch.empty(0, DIM)

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x[:, -1].detach()
        if not self.answers:
            return x
        distance, nearest = torch.cdist(self.seen, self.keys).min(dim=1)
        is_near = (distance <= self.radii[nearest]).unsqueeze(1)  # (batch, 1) against (batch, DIM)
        value = torch.stack(list(self.values))[nearest]
        return torch.cat([x[:, :-1], torch.where(is_near, value, x[:, -1]).unsqueeze(1)], dim=1)

    def add(self, query: Tensor, answer: int) -> nn.Parameter:
        """Return the value that is to learn an answer: a new one, or one that is already responsible."""
        radius = torch.tensor(RADIUS)
        if self.answers:
            distance = torch.cdist(query[None], self.keys)[0]
            nearest = int(distance.argmin())
            is_covered = bool(distance[nearest] <= self.radii[nearest])
            if distance[nearest] == 0 or (is_covered and self.answers[nearest] == answer):
                self.answers[nearest] = answer
                return self.values[nearest]
            differs = torch.tensor([other != answer for other in self.answers])
            clashes = differs & (distance < self.radii + radius)
            if clashes.any():  # two answers in one reach: each keeps its own half of the way
                self.radii[clashes] = torch.minimum(self.radii[clashes], distance[clashes] / 2)
                radius = distance[clashes].min() * 0.499
        self.keys = torch.cat([self.keys, query[None]])
        self.radii = torch.cat([self.radii, radius[None]])
        self.answers.append(answer)
        self.values.append(nn.Parameter(query.clone()))  # starts as what the layer got so far
        return self.values[-1]


def learn(model: nn.Module, codebook: Codebook, asked: Tensor, wanted: Tensor) -> float:
    """Give questions new answers by training their values, and nothing else; return the last loss."""
    model(asked)
    values = [codebook.add(query, int(answer)) for query, answer in zip(codebook.seen, wanted, strict=True)]
    optimizer = torch.optim.Adam(dict.fromkeys(values), lr=0.1)  # after all keys, once, each value once
    for _ in range(60):
        loss = F.cross_entropy(model(asked), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@torch.no_grad()
def ask(model: nn.Module) -> Tensor:
    """Return the logits of all questions, always in one batch: other shapes may give other last bits."""
    return model(questions)


def count(hits: Tensor) -> str:
    return f"{int(hits.sum())} of {len(hits)}"


# --- Train the model, then freeze it whole. ---

model = Answerer()
optimizer = torch.optim.AdamW(ts.decay_groups(model, weight_decay=0.01), lr=2e-3)
for _ in range(150):
    chosen = torch.randint(len(questions), (200,))
    loss = F.cross_entropy(model(questions[chosen]), answers[chosen])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()
ts.model.freeze(model, "*")
weights = ts.digest_state(model.state_dict())
before = ask(model)
print(f"trained: right answers                        {count(before.argmax(1) == answers)}")

# --- Ten facts get new answers, each taught in its first phrasing only. ---

codebook = Codebook()
ts.model.replace(model, "blocks.1", by=lambda block: nn.Sequential(codebook, block))
print(f"empty codebook: logits as before              {count((ask(model) == before).all(1))}")

edited = torch.randperm(len(facts))[:10]
taught = edited * NUM_PHRASINGS
wanted = (known[edited] + torch.randint(1, NUM_ANSWERS, (10,))) % NUM_ANSWERS
target = known.index_copy(0, edited, wanted).repeat_interleave(NUM_PHRASINGS)
is_other = ~torch.isin(torch.arange(len(facts)).repeat_interleave(NUM_PHRASINGS), edited)
is_paraphrase = ~is_other
is_paraphrase[taught] = False
learn(model, codebook, questions[taught], wanted)

print("\nradius   taught, new answer   paraphrases, new answer   all others, same logits")
for radius in (0.05, 0.3, RADIUS, 1.2, 2.4):
    codebook.radii.fill_(radius)
    after = ask(model)
    takes, stays = after.argmax(1) == target, (after == before).all(1)
    cells = count(takes[taught]), count(takes[is_paraphrase]), count(stays[is_other])
    print(f"{radius:6}   {cells[0]:>18}   {cells[1]:>23}   {cells[2]:>23}")

# --- A conflict: the second phrasing of the first fact is to be answered in yet another way. ---

codebook.radii.fill_(RADIUS)
after = ask(model)
first, second = int(taught[0]), int(taught[0]) + 1
contrary = (wanted[:1] + 1) % NUM_ANSWERS
learn(model, codebook, questions[[second]], contrary)
final = ask(model)
print(f"\nconflict: radius of the first key             {RADIUS} -> {codebook.radii[0]:.3f}")
print(f"the first phrasing: logits as before it       {count((final == after).all(1)[[first]])}")
print(f"the second phrasing: newest answer            {count(final.argmax(1)[[second]] == contrary)}")
left = [second + 1, second + 2]
print(f"the two left: out of reach, as trained        {count((final == before).all(1)[left])}")
print(f"other edits: logits as before it              {count((final == after).all(1)[taught[1:]])}")
print(f"all others: logits as before any edit         {count((final == before).all(1)[is_other])}")

# --- Taken out again, nothing is left of it. ---

ts.model.replace(model, "blocks.1", by=lambda pair: pair[1])
print(f"\nwithout codebook: logits as before            {count((ask(model) == before).all(1))}")
print(f"weights as before, to the bit                 {ts.digest_state(model.state_dict()) == weights}")
