// Where views come from: the viewer's server, or the files of a bundle. Both have the same keys.

import type { LogView, Problem, RunsView, SearchView } from "./wire";

declare global {
  interface Window {
    /** Views of a bundle, each set by a script of its own. */
    grpoData?: Record<string, unknown>;
  }
}

export class ViewError extends Error {}

export const isBundle = window.grpoData?.["runs"] !== undefined;

/** The viewer's answer to a request. A refusal is an error with the viewer's words. */
async function answered(path: string): Promise<Response> {
  let answer: Response;
  try {
    answer = await fetch(`api/${path}`);
  } catch {
    throw new ViewError("The viewer does not answer. Is `kubectl grpo ui` still running?");
  }
  if (!answer.ok) {
    const problem = (await answer.json().catch(() => null)) as Problem | null;
    throw new ViewError(problem?.message ?? `The viewer answered ${answer.status}.`);
  }
  return answer;
}

const ask = async <T>(path: string): Promise<T> => (await (await answered(path)).json()) as T;

/** Loads the script of a view. It ends without the view if the bundle does not have it. */
function loadScript(key: string): Promise<void> {
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = `data/${key.split("/").map(encodeURIComponent).join("/")}.js`;
    script.onload = () => resolve();
    script.onerror = () => reject(new ViewError("This bundle does not have the view."));
    document.head.append(script);
  });
}

/** A view by its key, such as `0/scope/rollouts/iter-000003`. */
export async function view<T>(key: string): Promise<T> {
  if (!isBundle) return ask<T>(key.split("/").map(encodeURIComponent).join("/"));
  if (window.grpoData?.[key] === undefined) await loadScript(key);
  const found = window.grpoData?.[key];
  if (found === undefined) throw new ViewError("This bundle does not have the view.");
  const problem = found as Partial<Problem>;
  if (typeof problem.message === "string" && Object.keys(problem).length === 1) throw new ViewError(problem.message);
  return found as T;
}

export const runs = (): Promise<RunsView> => view<RunsView>("runs");

export const search = (run: number, words: string): Promise<SearchView> =>
  ask<SearchView>(`${run}/search?q=${encodeURIComponent(words)}`);

export const log = (run: number, episode: string, from: number): Promise<LogView> =>
  ask<LogView>(`${run}/log/${episode.split("/").map(encodeURIComponent).join("/")}?from=${from}`);

const exported = (run: number, file: string): string => `${run}/export/${file.split("/").map(encodeURIComponent).join("/")}`;

/** The address of a file in a format of `kubectl grpo export`, such as `atif/<episode>`. */
export const download = (run: number, file: string): string => `api/${exported(run, file)}`;

/** Saves such a file under the name that the viewer gives it. A plain link would not show why the viewer refuses. */
export async function save(run: number, file: string): Promise<void> {
  const answer = await answered(exported(run, file));
  const name = /filename="([^"]+)"/.exec(answer.headers.get("content-disposition") ?? "")?.[1];
  const url = URL.createObjectURL(await answer.blob());
  const link = document.createElement("a");
  link.href = url;
  link.download = name ?? "download";
  link.click();
  // The browser reads it after this task.
  window.setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

export interface Change {
  run: number;
  live: boolean;
  problem: Problem | null;
}

/**
 * Calls `changed` for each run at first, and for each of its changes; `lost` when the viewer has gone. Bundles do not
 * change. A browser has six connections to a viewer, so a page that is not seen gives its own back.
 */
export function follow(changed: (change: Change) => void, lost: () => void): void {
  if (isBundle) return;
  let events: EventSource | null = null;
  const turn = () => {
    if (document.visibilityState === "hidden") {
      events?.close();
      events = null;
    } else if (events === null) {
      events = new EventSource("events");
      events.onmessage = (event) => changed(JSON.parse(event.data as string) as Change);
      events.onerror = lost;
    }
  };
  document.addEventListener("visibilitychange", turn);
  turn();
}
