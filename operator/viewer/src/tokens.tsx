// The sampled tokens of a turn. A token's colour is its probability: the stronger, the less likely it was.

import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { number, plural } from "./format";
import type { TokensView } from "./wire";

/** 0 for a token that was nearly certain, 5 for one that was nearly impossible. */
export function surprise(logprob: number): number {
  if (logprob > -0.05) return 0;
  if (logprob > -0.5) return 1;
  if (logprob > -1.2) return 2;
  if (logprob > -2.5) return 3;
  return logprob > -5 ? 4 : 5;
}

/** A token as it can be seen: blanks and line ends have signs. */
const visible = (text: string): string => text.replaceAll("\n", "⏎\n").replaceAll("\t", "⇥\t").replaceAll("\r", "␍");

export function Tokens(props: { of: TokensView; advantage: number | null }): JSX.Element {
  const { of } = props;
  const [at, setAt] = useState<number | null>(null);
  // Made once: a turn may have ten thousand tokens, and a pointer moves often.
  const spans = useMemo(
    () =>
      of.ids.map((id, n) => (
        <span key={n} data-n={n} class={`token s${surprise(of.logprobs[n] ?? 0)}`}>
          {of.hasText ? visible(of.texts[n] ?? "") : `${id} `}
        </span>
      )),
    [of],
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
            {number(Math.exp(logprob), 3)}, advantage {number(props.advantage)}, sampled by {of.weights}
          </>
        )}
      </p>
    </>
  );
}
