"""The decode loop of the examples."""

import pytest
import torch

import mxgemm
from examples.decode_loop import Decoder, Step

WORDS = 50


def decoder(device: str = "cpu", batch: int = 2) -> Decoder:
    model = Decoder(WORDS, 64, 2, 2, length=16, batch=batch)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    report = mxgemm.quantize_(model.bfloat16().to(device), mxgemm.MXConfig("e2m1", prepare="fast"))
    assert len(report.quantized) == 8
    return model.eval()


@pytest.mark.parametrize("inference", [False, True])
def test_the_loop_gives_the_tokens_of_steps_by_hand(inference: bool) -> None:
    model = decoder()
    prompt = torch.randint(0, WORDS, (2, 5))
    with torch.inference_mode(inference), torch.set_grad_enabled(False):
        step = Step(model, prompt)
        tokens = step.decode(8)
        assert torch.equal(step.decode(8), tokens)  # from the beginning again, over what the cache holds
        sequence = prompt
        for _ in range(8):
            for block in model.blocks:
                block.keys.fill_(torch.nan)  # whatever is not written before it is read shows
                block.values.zero_()
            for at in range(sequence.shape[1]):
                for block in model.blocks:
                    block.keys[:, :, at:] = 0
                logits = model(sequence[:, at], torch.tensor([at]))
            sequence = torch.cat([sequence, logits.argmax(-1, keepdim=True)], 1)
    assert torch.equal(sequence[:, 5:], tokens)
    assert len(tokens.unique()) > 3


def test_more_positions_than_the_cache_has_are_refused() -> None:
    with torch.no_grad(), pytest.raises(ValueError, match="count: got 13 after 5 tokens, want up to 16 positions"):
        Step(decoder(), torch.zeros(2, 5, dtype=torch.long)).decode(13)


@pytest.mark.gpu
def test_a_replayed_graph_gives_the_tokens_of_eager_steps() -> None:
    if torch.version.hip:
        pytest.skip("torch.cuda.graph was tried on CUDA alone")
    prompt = torch.randint(0, WORDS, (2, 5), device="cuda")
    with torch.inference_mode():
        step = Step(decoder("cuda"), prompt)
        eager = step.decode(12)  # to the last position that there is
        step.capture()
        assert torch.equal(step.decode(12), eager)
        assert torch.equal(step.decode(12), eager)
