"""Pretrain a very small GPT-2 from scratch on counting sequences."""

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel

VOCABULARY = 64
LENGTH = 24


class CountingSequences(Dataset):
    """Arithmetic progressions modulo the vocabulary: start, stride, noise-free."""

    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        pairs = torch.randperm(VOCABULARY * 12, generator=generator)[:count]
        start, stride = pairs % VOCABULARY, 1 + pairs // VOCABULARY
        self.tokens = (start.unsqueeze(1) + stride.unsqueeze(1) * torch.arange(LENGTH)) % VOCABULARY

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        tokens = self.tokens[index]
        return {"input_ids": tokens[:-1], "labels": tokens[1:]}  # expect: LOSS08


def build_model():
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_embd=48,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


@torch.no_grad()
def continuation_accuracy(model, tokens):
    """Greedy next token after a prompt of six numbers."""
    model.eval()
    logits = model(input_ids=tokens[:, :6]).logits[:, -1]
    model.train()
    return (logits.argmax(dim=-1) == tokens[:, 6]).float().mean().item()


def main():
    torch.manual_seed(0)
    data = CountingSequences(480, seed=0)
    loader = DataLoader(data, batch_size=40, shuffle=True)
    model = build_model()
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    for epoch in range(4):
        total = 0.0
        for batch in loader:
            loss = model(**batch).loss  # expect: LOSS08
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.item()
        accuracy = continuation_accuracy(model, data.tokens[:100])
        print(f"epoch {epoch}: loss {total / len(loader):.3f}, next number right {accuracy:.2f}")


if __name__ == "__main__":
    main()
