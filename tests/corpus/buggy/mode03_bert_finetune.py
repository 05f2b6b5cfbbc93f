"""Fine-tune a saved miniature BERT on a sentence classification task."""

import tempfile

import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification

WORDS, LENGTH, TOPICS = 150, 16, 3


def sentences(count, seed):
    """Every topic prefers its own third of the words; token 0 is reserved for padding."""
    generator = torch.Generator().manual_seed(seed)
    topic = torch.randint(0, TOPICS, (count,), generator=generator)
    third = WORDS // TOPICS
    anywhere = torch.randint(0, WORDS, (count, LENGTH), generator=generator)
    own = topic.unsqueeze(1) * third + torch.randint(0, third, (count, LENGTH), generator=generator)
    pick = torch.rand(count, LENGTH, generator=generator) < 0.5
    return TensorDataset(1 + torch.where(pick, own, anywhere), topic)


def save_base_model(folder):
    config = BertConfig(
        vocab_size=WORDS + 1,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
        num_labels=TOPICS,
    )
    BertForSequenceClassification(config).save_pretrained(folder)


def evaluate(model, loader):
    was_training = model.training
    model.eval()
    hits = seen = 0
    with torch.no_grad():
        for ids, topic in loader:
            hits += (model(input_ids=ids).logits.argmax(dim=-1) == topic).sum().item()
            seen += len(topic)
    model.train(was_training)
    return hits / seen


def finetune(model, train_loader, val_loader, max_steps=48, eval_every=16):
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=max_steps)
    step = 0
    while step < max_steps:
        for ids, topic in train_loader:  # expect: MODE03
            output = model(input_ids=ids, labels=topic)
            output.loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            step += 1
            if step % eval_every == 0:
                accuracy = evaluate(model, val_loader)
                print(f"step {step}: loss {output.loss.item():.4f}, accuracy {accuracy:.3f}")
            if step == max_steps:
                break


def main():
    torch.manual_seed(0)
    train_loader = DataLoader(sentences(512, seed=1), batch_size=32, shuffle=True)
    val_loader = DataLoader(sentences(96, seed=2), batch_size=96)
    with tempfile.TemporaryDirectory() as folder:
        save_base_model(folder)
        model = BertForSequenceClassification.from_pretrained(folder)  # expect: MODE03
    finetune(model, train_loader, val_loader)


if __name__ == "__main__":
    main()
