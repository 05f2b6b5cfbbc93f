"""Screening with 8 % positives: BCEWithLogitsLoss with pos_weight, predictions and targets both (N, 1)."""

import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def cohort(count, generator):
    positive = (torch.rand(count, 1, generator=generator) < 0.08).float()
    shift = torch.tensor([1.2, -0.8, 0.0, 0.9, 0.0, 0.0, -1.1, 0.4])
    features = torch.randn(count, 8, generator=generator) + positive * shift
    return features, positive


class RiskScore(nn.Module):
    def __init__(self, dropout=0.1):
        super().__init__()
        self.hidden = nn.Linear(8, 32)
        self.dropout = nn.Dropout(dropout)
        self.logit = nn.Linear(32, 1)

    def forward(self, x):
        return self.logit(self.dropout(torch.tanh(self.hidden(x))))


class Screening:
    def __init__(self, model, pos_weight, lr):
        self.model = model
        self.criterion = nn.BCEWithLogitsLoss(pos_weight=pos_weight)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def fit_epoch(self, loader):
        self.model.train()
        total = 0.0
        for features, target in loader:
            logit = self.model(features)
            assert logit.shape == target.shape
            loss = self.criterion(logit, target)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.item() * len(features)
        return total / len(loader.dataset)

    @torch.no_grad()
    def probabilities(self, features):
        self.model.eval()
        return torch.sigmoid(self.model(features)).squeeze(1)


if __name__ == "__main__":
    torch.manual_seed(79)
    rng = torch.Generator().manual_seed(79)
    x_train, y_train = cohort(2000, rng)
    x_test, y_test = cohort(1000, rng)
    negatives, positives = (y_train == 0).sum(), (y_train == 1).sum()
    screening = Screening(RiskScore(), pos_weight=negatives / positives, lr=5e-3)
    batches = DataLoader(TensorDataset(x_train, y_train), batch_size=100, shuffle=True)
    for epoch in range(5):
        print(f"epoch {epoch}: weighted loss {screening.fit_epoch(batches):.3f}")
    risk = screening.probabilities(x_test).numpy()
    truth = y_test.squeeze(1).numpy()
    print(
        f"AUC {roc_auc_score(truth, risk):.3f}, average precision {average_precision_score(truth, risk):.3f}"
    )
