// The sampled tokens of a turn, coloured by one of their numbers: the stronger the colour, the more a token stands out.

import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { number, plural } from "./format";
import type { TokensView } from "./wire";

/** What the colours show, with a sentence about the strongest ones. */
export const COLOURS = {
  probability: "tokens that the engine thought unlikely",
  entropy: "tokens before which the policy was uncertain",
  distance: "tokens whose logprobs of engine and trainer differ, from 0.001 nat on",
  ratio: "tokens whose probability has changed most, from 1 % on",
} as const;
export type Colour = keyof typeof COLOURS;

/** The number of bounds that a value has reached: 0 to 5. */
const level = (value: number, bounds: [number, number, number, number, number]): number =>
  bounds.filter((bound) => value >= bound).length;

/** 0 for a token that does not stand out, 5 for one that does most. */
export function strength(of: TokensView, n: number, colour: Colour): number {
  const engine = of.logprobs[n] ?? 0;
  const [trainer, entropy, ratio] = [of.trainer?.logprobs[n], of.trainer?.entropies[n], of.trainer?.ratios[n]];
  switch (colour) {
    case "probability":
      return level(-engine, [0.05, 0.5, 1.2, 2.5, 5]);
    case "entropy":
      return level(entropy ?? 0, [0.2, 0.5, 1, 1.7, 2.5]);
    case "distance":
      return trainer === null || trainer === undefined ? 0 : level(Math.abs(trainer - engine), [0.001, 0.01, 0.05, 0.2, 1]);
    case "ratio":
      return level(Math.abs((ratio ?? 1) - 1), [0.01, 0.05, 0.1, 0.2, 0.5]);
  }
}

/** A token as it can be seen: blanks and line ends have signs. */
const visible = (text: string): string => text.replaceAll("\n", "⏎\n").replaceAll("\t", "⇥\t").replaceAll("\r", "␍");

/** The classes of a token. */
function classes(of: TokensView, n: number, colour: Colour): string {
  const marks = [of.trainer?.clipped[n] ? " clipped" : "", of.trainer?.leftOut[n] ? " left-out" : ""];
  return `token s${strength(of, n, colour)}${marks.join("")}`;
}

export function Tokens(props: { of: TokensView; advantage: number | null; colour: Colour }): JSX.Element {
  const { of, colour } = props;
  const [at, setAt] = useState<number | null>(null);
  // Made once: a turn may have ten thousand tokens, and a pointer moves often.
  const spans = useMemo(
    () =>
      of.ids.map((id, n) => (
        <span key={n} data-n={n} class={classes(of, n, colour)}>
          {of.hasText ? visible(of.texts[n] ?? "") : `${id} `}
        </span>
      )),
    [of, colour],
  );
  const found = (target: EventTarget | null) => {
    const n = target instanceof HTMLElement ? target.dataset["n"] : undefined;
    if (n !== undefined) setAt(Number(n));
  };
  const moved = (event: KeyboardEvent) => {
    const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (by === 0) return;
    event.preventDefault();
    setAt(Math.max(0, Math.min(of.ids.length - 1, (at ?? -by) + by)));
  };
  const logprob = at === null ? null : of.logprobs[at] ?? null;
  return (
    <>
      <pre
        class="sampled tokens"
        tabIndex={0}
        role="application"
        aria-label={`${plural(of.ids.length, "sampled token")}; the arrow keys move between them`}
        onMouseOver={(event) => found(event.target)}
        onClick={(event) => found(event.target)}
        onKeyDown={moved}
      >
        {spans}
      </pre>
      <p class="token-facts" aria-live="polite">
        {at === null || logprob === null ? (
          <span class="quiet">Point at a token, or use the arrow keys.</span>
        ) : (
          <>
            token {at + 1} of {of.ids.length}: id {of.ids[at]}
            {of.hasText && <> <code>{JSON.stringify(of.texts[at] ?? "")}</code></>}, logprob {number(logprob, 4)}, probability{" "}
            {number(Math.exp(logprob), 3)}, sampled by {of.weights}
            <Trained of={of} at={at} advantage={props.advantage} />
          </>
        )}
      </p>
    </>
  );
}

/** What the trainer computed for a token. */
function Trained(props: { of: TokensView; at: number; advantage: number | null }): JSX.Element {
  const { of, at } = props;
  const { trainer } = of;
  const logprob = trainer?.logprobs[at];
  if (!trainer || logprob === null || logprob === undefined) {
    const why = trainer ? `; its loss was not computed in step ${trainer.step}` : "";
    return <>, advantage {number(trainer?.advantage ?? props.advantage)}{why}</>;
  }
  return (
    <>
      . Step {trainer.step}: the trainer's logprob {number(logprob, 4)}, entropy {number(trainer.entropies[at] ?? null, 3)}, ratio{" "}
      {number(trainer.ratios[at] ?? null, 4)}
      {trainer.clipped[at] ? " (clipped)" : ""}
      {trainer.leftOut[at] ? " (left out: engine and trainer are too far apart)" : ""}, advantage {number(trainer.advantage)}
    </>
  );
}
