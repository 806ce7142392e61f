// Addresses of views. They are behind the `#`, so that they work in a bundle that was opened from a folder.

export type Route =
  | { view: "overview"; run: number }
  | { view: "scope"; run: number; scope: string }
  | { view: "group"; run: number; scope: string; group: number }
  | { view: "episode"; run: number; path: string; turn: number | null }
  | { view: "task"; run: number; instance: string }
  | { view: "lineage"; run: number }
  | { view: "search"; run: number; words: string }
  | { view: "compare" }
  | { view: "unknown" };

const escaped = (path: string): string => path.split("/").map(encodeURIComponent).join("/");

export const to = {
  overview: (run: number) => `#/${run}`,
  scope: (run: number, scope: string) => `#/${run}/scope/${escaped(scope)}`,
  group: (run: number, scope: string, group: number) => `#/${run}/group/${escaped(scope)}/${group}`,
  episode: (run: number, path: string, turn?: number) =>
    `#/${run}/episode/${escaped(path)}${turn === undefined ? "" : `?turn=${turn}`}`,
  task: (run: number, instance: string) => `#/${run}/task/${escaped(instance)}`,
  lineage: (run: number) => `#/${run}/lineage`,
  search: (run: number, words: string) => `#/${run}/search?q=${encodeURIComponent(words)}`,
  compare: () => "#/compare",
};

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** The route of `location.hash`. */
export function parse(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const parts = path.split("/").filter((part) => part !== "").map(decoded);
  const given = new URLSearchParams(query);
  if (parts.length === 0) return { view: "overview", run: 0 };
  if (parts[0] === "compare") return { view: "compare" };
  const run = Number(parts[0]);
  if (!Number.isInteger(run) || run < 0) return { view: "unknown" };
  const rest = parts.slice(2);
  switch (parts[1]) {
    case undefined:
      return { view: "overview", run };
    case "scope":
      return { view: "scope", run, scope: rest.join("/") };
    case "group":
      return { view: "group", run, scope: rest.slice(0, -1).join("/"), group: Number(rest.at(-1)) };
    case "episode": {
      const turn = given.get("turn");
      return { view: "episode", run, path: rest.join("/"), turn: turn === null ? null : Number(turn) };
    }
    case "task":
      return { view: "task", run, instance: rest.join("/") };
    case "lineage":
      return { view: "lineage", run };
    case "search":
      return { view: "search", run, words: given.get("q") ?? "" };
    default:
      return { view: "unknown" };
  }
}

/** The folder of an episode's scope. */
export const scopeOf = (episode: string): string => episode.split("/").slice(0, -1).join("/");

/** `iteration 3`, `heldout of l1-v4`. */
export function scopeTitle(scope: string): string {
  const parts = scope.split("/");
  const iteration = /^iter-0*(\d+)$/.exec(parts[1] ?? "");
  if (iteration) return `iteration ${iteration[1]}`;
  return parts.length === 3 ? `${parts[1]} of ${parts[2]}` : scope;
}
