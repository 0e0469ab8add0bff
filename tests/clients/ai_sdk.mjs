// Vercel's AI SDK, unmodified, against the address in argv[2]: prints one JSON object of what came back.
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateObject, generateText, stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';

const baseURL = `${process.argv[2]}/v1`;
const openai = createOpenAI({ baseURL, apiKey: 'none' });
const models = {
  responses: openai('smollm2'), // the default of @ai-sdk/openai
  chat: openai.chat('smollm2'),
  compatible: createOpenAICompatible({ name: 'sapwood', baseURL })('smollm2'),
};
const schema = z.object({ name: z.string().max(12), warm: z.boolean() });
const weather = tool({
  description: 'The weather of a city.',
  inputSchema: z.object({ unit: z.enum(['celsius', 'fahrenheit']) }),
  execute: async ({ unit }) => `20 degrees ${unit}`,
});
const found = {};
for (const [name, model] of Object.entries(models)) {
  const ask = { model, prompt: 'Name a colour.', maxOutputTokens: 16, temperature: 0, maxRetries: 0 };
  const whole = await generateText(ask);
  let streamed = '';
  for await (const part of streamText(ask).textStream) streamed += part;
  const once = await generateText({ ...ask, maxOutputTokens: 100, tools: { weather }, toolChoice: 'required' });
  let object = null;
  if (name !== 'compatible') object = (await generateObject({ ...ask, maxOutputTokens: 100, schema })).object;
  found[name] = {
    same: whole.text === streamed && whole.text.length > 0,
    tokens: whole.usage.inputTokens > 0 && whole.usage.outputTokens > 0,
    call: once.toolCalls[0]?.toolName,
    result: once.toolResults[0]?.output,
    object: object === null ? true : typeof object.warm === 'boolean',
  };
}
console.log(JSON.stringify(found));
