# SPDX-License-Identifier: MIT
"""`POST /tokenize` and `POST /detokenize`, in vLLM's shapes."""

from __future__ import annotations

import msgspec
from attrs import frozen
from starlette.requests import Request
from starlette.responses import Response

from tokenspeed_openai.bodies import decode, read_body
from tokenspeed_openai.conversations import conversation_prompt
from tokenspeed_openai.deployment import Deployment
from tokenspeed_openai.errors import invalid
from tokenspeed_openai.requests import DetokenizeRequest, TokenizeRequest
from tokenspeed_openai.responses import Text, Tokens
from tokenspeed_openai.sampling import check_vocabulary
from tokenspeed_openai.texts import Prompt, spelled


@frozen
class TokensApi:
    """The two endpoints."""

    deployment: Deployment

    async def tokenize(self, request: Request) -> Response:
        """A text or a conversation as tokens."""
        content = await read_body(request, self.deployment.options.max_body_bytes)
        body, _ = decode(content, TokenizeRequest)
        self.deployment.check_model(body.model)
        ids = (await self._prompt(body)).token_ids
        spell = self.deployment.texts.token_bytes
        answer = Tokens(
            count=len(ids),
            max_model_len=self.deployment.limits.max_model_len,
            tokens=list(ids),
            token_strs=[spelled(spell(each)) for each in ids] if body.return_token_strs else None,
        )
        return json_response(answer)

    async def detokenize(self, request: Request) -> Response:
        """Tokens as text, special ones included."""
        content = await read_body(request, self.deployment.options.max_body_bytes)
        body, _ = decode(content, DetokenizeRequest)
        self.deployment.check_model(body.model)
        check_vocabulary(body.tokens, self.deployment.limits, field="tokens")
        text = await self.deployment.texts.decode(body.tokens, skip_special=False)
        return json_response(Text(prompt=text))

    async def _prompt(self, body: TokenizeRequest) -> Prompt:
        texts = self.deployment.texts
        if (body.prompt is None) == (body.messages is None):
            raise invalid("Give either prompt or messages", "prompt")
        if body.prompt is None:
            return await conversation_prompt(body, texts)
        add_special = body.add_special_tokens is not False
        (prompt,) = await texts.encode([body.prompt], add_special=add_special)
        return prompt


def json_response(answer: msgspec.Struct, *, status: int = 200) -> Response:
    """A struct as the body of a response."""
    return Response(msgspec.json.encode(answer), status_code=status, media_type="application/json")
