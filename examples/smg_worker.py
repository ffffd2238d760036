# SPDX-License-Identifier: MIT
r"""Show an SMG gateway an engine as a gRPC worker, so that it follows the engine's KV events.

    smg_worker.py --port 50051 --model FOLDER --handshake tcp://127.0.0.1:5556 \
        --events tcp://127.0.0.1:5557 --replays tcp://127.0.0.1:5558 &
    tokenspeed engine --connect tcp://127.0.0.1:5556 --model FOLDER --plugins kv_events \
        --kv-events-endpoint tcp://127.0.0.1:5557 --kv-events-replay-endpoint tcp://127.0.0.1:5558 &
    smg launch --backend tokenspeed --policy cache_aware --model-path FOLDER \
        --worker-urls grpc://127.0.0.1:50051        # and those of further engines

The server is in the gateway's own package and binds the same wire as the gateway would. A gateway
that is given `ipc://` workers has no KV events. Ctrl-C ends it; it ends by itself with its engine.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from smg.servicer import TokenSpeedGrpcServer


def main() -> int:
    """Serve until the engine is gone."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, required=True, help="where the gateway finds it")
    parser.add_argument("--model", required=True, help="the model's folder")
    parser.add_argument("--handshake", required=True, help="where the engine connects to")
    parser.add_argument("--events", required=True, help="where the engine publishes")
    parser.add_argument("--replays", help="where the engine answers replays")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ts") as folder:
        server = _server(given, base=f"ipc://{folder}/engine")
        try:
            _attend(server)
        except KeyboardInterrupt:
            return 130
        finally:
            server.stop()
    sys.stderr.write(f"smg_worker: {server.last_error}\n")
    return 1


def _attend(server: TokenSpeedGrpcServer) -> None:
    """Say that it serves, once the engine is there, until it is gone."""
    while not server.last_error:
        if server.engine_ready:
            server.set_serving(True)
        else:
            server.note_engine_alive()
        time.sleep(0.1)


def _server(given: argparse.Namespace, *, base: str) -> TokenSpeedGrpcServer:
    model = json.loads((Path(given.model) / "config.json").read_text(encoding="utf-8"))
    length = model["max_position_embeddings"]
    return TokenSpeedGrpcServer(
        f"127.0.0.1:{given.port}",
        base,
        given.handshake,
        given.model,
        tokenizer_dir=given.model,
        tokenizer_path=given.model,
        served_model_name=given.model,
        model_type=model["model_type"],
        architectures=model["architectures"],
        max_context_length=length,
        max_req_input_len=length - 1,
        vocab_size=model["vocab_size"],
        eos_token_ids=_ids(model["eos_token_id"]),
        kv_events_endpoint=given.events,
        kv_events_replay_endpoint=given.replays or "",
        kv_events_topic="",
        server_args_json="{}",
        scheduler_info_json="{}",
        tokenspeed_version="1",
        model_dtype=model.get("torch_dtype", "float32"),
    )


def _ids(value: Any) -> list[int]:
    return value if isinstance(value, list) else [value]


if __name__ == "__main__":
    sys.exit(main())
