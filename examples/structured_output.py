"""Objects of a class, and calls of a function, from any OpenAI client: `python examples/structured_output.py [URL]`.

Start `sapwood serve` first, and `pip install openai`.
"""

import sys
from typing import Literal

from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel, Field

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
client = OpenAI(base_url=f"{url}/v1", api_key="none")


class Opinion(BaseModel):
    film: str = Field(max_length=30)
    sentiment: Literal["positive", "negative"]
    stars: int = Field(ge=1, le=5)


review = "I watched Alien again last night, and it is still the best film I know."
answer = client.chat.completions.parse(
    model="smollm2",
    messages=[{"role": "user", "content": f"What does this review say? {review}"}],
    response_format=Opinion,
    temperature=0,
)
print(repr(answer.choices[0].message.parsed))

answer = client.chat.completions.parse(
    model="smollm2",
    messages=[{"role": "user", "content": f"Store this review: {review}"}],
    tools=[pydantic_function_tool(Opinion, name="store")],
    tool_choice="required",
    temperature=0,
)
for call in answer.choices[0].message.tool_calls or []:
    print(call.function.name, repr(call.function.parsed_arguments))
