//! Computes common prefixes of rows once: a step's rows are merged into tries by their token ids and laid out flat.
//!
//! Rows of one group share the prompt; one-row-per-turn rows of an episode share the history. A position's hidden state
//! depends only on the tokens up to it, so equal prefixes are one run of tokens in the pack. A [`Pack`] is such a
//! layout: unique tokens, the position of each, the attention's [`Piece`]s, and for each trained token of each row an
//! [`Entry`]: the place of the hidden state that predicts it.
//!
//! **Layout.** A node of the trie is followed by its largest child, and so on down: a *heavy path* of consecutive
//! tokens, which one causal call computes like a single row. Branches follow, nested; all branches from one place lie
//! together, and are one call whose queries see the path up to there. A token is in at most 1 + log2(n) calls
//! (heavy-light decomposition, Sleator and Tarjan 1983), however many turns an episode has. Sharing prefixes between
//! rows of a trie is AReaL's tree training and verl's PrefixGrouper; packs, layout and merge here are our own.
//!
//! **Cutting.** A pack holds at most `budget` unique tokens, unless a single row is longer. A trie is cut where the
//! least is shared: a subtree that fits is never cut. Packs are dealt to ranks by cost (linear part, attention's pairs,
//! vocabulary head); a trie is cut further only if that makes the slowest rank faster.
//!
//! The result depends on the rows only, never on a clock or a hash map's order, so a replayed batch is computed in the
//! same order.

use std::ops::Range;

use grpo_model::Config;
use grpo_native::attention::Piece;
use grpo_objective::mixing::mixed;

use crate::flops::{Forward, Work};
use crate::train_row::TrainRow;

/// A trained token of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Place in the pack of the hidden state that predicts the token.
    pub at: usize,
    pub row: usize,
    /// Its index in the row.
    pub token: usize,
}

/// Tokens of a row that are consecutive in a pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Place of the first token in the pack.
    pub at: usize,
    pub row: usize,
    /// Place of the tokens in the row.
    pub tokens: Range<usize>,
}

/// Rows computed together, each shared prefix once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pack {
    pub tokens: Vec<u32>,
    /// Position of each token in its rows.
    pub positions: Vec<usize>,
    /// For each token, a hash of it and all tokens before it in its row: equal wherever a row begins with the same
    /// tokens, in any pack.
    pub prefixes: Vec<u64>,
    pub pieces: Vec<Piece>,
    /// For each token, one of the rows that have it.
    pub runs: Vec<Run>,
    /// By row, then by token.
    pub entries: Vec<Entry>,
}

/// Forward work of one token in the linear layers, of one pair of the attention, and of one trained token in the
/// vocabulary head. The three share a unit; any unit will do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    pub token: f64,
    pub pair: f64,
    pub entry: f64,
}

impl Cost {
    /// In multiplications.
    pub fn of(config: &Config) -> Self {
        let forward = Forward::of(config);
        Self {
            token: forward.token + forward.adapter,
            pair: forward.pair,
            entry: forward.entry,
        }
    }
}

impl Pack {
    pub fn pairs(&self) -> usize {
        self.pieces.iter().map(Piece::pairs).sum()
    }

    pub fn cost(&self, cost: &Cost) -> f64 {
        cost.token * self.tokens.len() as f64 + cost.pair * self.pairs() as f64 + cost.entry * self.entries.len() as f64
    }
}

/// A step's packs, by rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packing {
    pub ranks: Vec<Vec<Pack>>,
    /// Tokens computed, over all ranks.
    pub unique_tokens: usize,
    /// Tokens of the rows.
    pub row_tokens: usize,
}

impl Packing {
    /// The work of all packs together.
    pub fn work(&self) -> Work {
        let mut work = Work::default();
        for pack in self.ranks.iter().flatten() {
            work += Work {
                tokens: pack.tokens.len() as f64,
                pairs: pack.pairs() as f64,
                entries: pack.entries.len() as f64,
            };
        }
        work
    }
}

/// Merges rows, cuts the tries into packs of at most `budget` tokens, and deals the packs to `ranks`. Rows without a
/// trained token, and tokens after a row's last trained token, are not computed.
pub fn pack(rows: &[TrainRow], budget: usize, ranks: usize, cost: &Cost) -> Packing {
    let rows: Vec<Used<'_>> = rows
        .iter()
        .enumerate()
        .filter_map(|(at, row)| Used::of(at, row))
        .collect();
    let ranks = ranks.max(1);
    let whole = trie(&rows, (0..rows.len()).collect());
    let total: usize = whole.iter().map(|node| node.range.len()).sum();
    // With more ranks than whole tries, a smaller budget may spread the work. Shared tokens are then in several packs,
    // so the packs are larger in total.
    let mut budgets = vec![budget.max(1)];
    if ranks > 1 {
        let sizes =
            (1..=4).flat_map(|parts| [100, 115, 130, 160].map(|percent| total * percent / (100 * ranks * parts)));
        budgets.extend(sizes.map(|size| size.max(1)).filter(|size| *size < budget));
    }
    let mut best: Option<(f64, Vec<Vec<Pack>>)> = None;
    for budget in budgets {
        let packs = cut(&whole, budget)
            .into_iter()
            .map(|members| lay_out(&rows, members))
            .collect();
        let dealt = deal(packs, ranks, cost);
        let most = dealt
            .iter()
            .map(|packs| packs.iter().map(|pack| pack.cost(cost)).sum::<f64>())
            .fold(0.0, f64::max);
        // The largest budget comes first; only a clearly faster packing replaces it.
        if best.as_ref().is_none_or(|(least, _)| most < least * 0.98) {
            best = Some((most, dealt));
        }
    }
    let dealt = best.map(|(_, dealt)| dealt).unwrap_or_default();
    Packing {
        unique_tokens: dealt.iter().flatten().map(|pack| pack.tokens.len()).sum(),
        row_tokens: rows.iter().map(|row| row.whole).sum(),
        ranks: dealt,
    }
}

/// One pack per row, nothing shared: the baseline for prefix sharing.
pub fn unshared(rows: &[TrainRow], ranks: usize, cost: &Cost) -> Packing {
    let rows: Vec<Used<'_>> = rows
        .iter()
        .enumerate()
        .filter_map(|(at, row)| Used::of(at, row))
        .collect();
    let packs = (0..rows.len()).map(|row| lay_out(&rows, vec![row])).collect();
    let dealt = deal(packs, ranks.max(1), cost);
    Packing {
        unique_tokens: dealt.iter().flatten().map(|pack| pack.tokens.len()).sum(),
        row_tokens: rows.iter().map(|row| row.whole).sum(),
        ranks: dealt,
    }
}

/// The computed part of a row.
struct Used<'a> {
    row: usize,
    source: &'a TrainRow,
    /// The tokens before the last trained token, which itself predicts nothing.
    tokens: &'a [u32],
    whole: usize,
}

impl<'a> Used<'a> {
    fn of(row: usize, source: &'a TrainRow) -> Option<Self> {
        let last = source.weights.iter().rposition(|weight| *weight != 0.0)?;
        (last > 0).then(|| Self {
            row,
            source,
            tokens: &source.tokens[..last],
            whole: source.tokens.len(),
        })
    }
}

/// A run of tokens in which no row branches off. Node 0 has no tokens and is the root.
#[derive(Default)]
struct Node {
    /// A row with these tokens; `range` is their place in it.
    from: usize,
    range: Range<usize>,
    children: Vec<usize>,
    /// Rows that end within the run or at its end.
    ends: Vec<usize>,
    parent: usize,
}

/// Merges `members` by their prefixes. Parents come before their children.
fn trie(rows: &[Used<'_>], mut members: Vec<usize>) -> Vec<Node> {
    members.sort_by(|a, b| rows[*a].tokens.cmp(rows[*b].tokens).then(a.cmp(b)));
    let mut nodes: Vec<Node> = vec![Node::default()];
    // Rows that share their first `depth` tokens, below `parent`.
    let mut open = vec![(0..members.len(), 0usize, 0usize)];
    while let Some((range, depth, parent)) = open.pop() {
        // Rows longer than `depth`, by their next token: equal tokens are neighbours.
        let mut begin = range.start;
        while begin < range.end {
            let first = rows[members[begin]].tokens;
            let next = first.get(depth);
            let mut end = begin + 1;
            while end < range.end && rows[members[end]].tokens.get(depth) == next {
                end += 1;
            }
            if next.is_some() {
                // A run ends where its rows differ. The end of a row does not cut it.
                let last = rows[members[end - 1]].tokens;
                let ended = members[begin..end]
                    .iter()
                    .take_while(|row| last.starts_with(rows[**row].tokens))
                    .count();
                let upto = if ended == end - begin {
                    last.len()
                } else {
                    let differs = rows[members[begin + ended]].tokens;
                    common(differs, last).max(depth)
                };
                let ends: Vec<usize> = members[begin..begin + ended]
                    .iter()
                    .copied()
                    .filter(|row| rows[*row].tokens.len() <= upto)
                    .collect();
                let node = nodes.len();
                let begin_of_rest = begin + ends.len();
                nodes.push(Node {
                    from: members[end - 1],
                    range: depth..upto,
                    children: Vec::new(),
                    ends,
                    parent,
                });
                nodes[parent].children.push(node);
                open.push((begin_of_rest..end, upto, node));
            }
            begin = end;
        }
    }
    nodes
}

fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Tokens of each node and all nodes below it.
fn sizes(nodes: &[Node]) -> Vec<usize> {
    let mut sizes: Vec<usize> = nodes.iter().map(|node| node.range.len()).collect();
    for at in (1..nodes.len()).rev() {
        sizes[nodes[at].parent] += sizes[at];
    }
    sizes
}

/// Rows for one pack, and the tokens that they add to those of the nodes above.
struct Bin {
    rows: Vec<usize>,
    tokens: usize,
}

/// Members of each pack: whole subtrees where they fit.
fn cut(nodes: &[Node], budget: usize) -> Vec<Vec<usize>> {
    let sizes = sizes(nodes);
    // Bins of each node, bottom up: children come after their parents in `nodes`.
    let mut bins: Vec<Vec<Bin>> = (0..nodes.len()).map(|_| Vec::new()).collect();
    for at in (0..nodes.len()).rev() {
        let node = &nodes[at];
        let mut items: Vec<Bin> = Vec::new();
        for child in &node.children {
            items.append(&mut bins[*child]);
        }
        let room = budget.saturating_sub(node.range.end);
        let together = sizes[at] - node.range.len() <= room;
        let mut packed: Vec<Bin> = Vec::new();
        // First fit, largest first.
        items.sort_by_key(|bin| (std::cmp::Reverse(bin.tokens), bin.rows.first().copied()));
        for item in items {
            match packed
                .iter_mut()
                .find(|bin| together || bin.tokens + item.tokens <= room)
            {
                Some(bin) => {
                    bin.tokens += item.tokens;
                    bin.rows.extend(item.rows);
                }
                None => packed.push(item),
            }
        }
        // Every bin contains this node's tokens, so any bin can take the rows that end here.
        match packed.first_mut() {
            Some(bin) => bin.rows.extend(&node.ends),
            None if !node.ends.is_empty() => packed.push(Bin {
                rows: node.ends.clone(),
                tokens: 0,
            }),
            None => (),
        }
        // For the parent, every bin needs this node's tokens too.
        for bin in &mut packed {
            bin.tokens += node.range.len();
        }
        bins[at] = packed;
    }
    bins.swap_remove(0).into_iter().map(|bin| bin.rows).collect()
}

/// Deals packs to ranks: the most expensive first, always to the rank with the least work.
fn deal(packs: Vec<Pack>, ranks: usize, cost: &Cost) -> Vec<Vec<Pack>> {
    let mut order: Vec<(f64, usize, Pack)> = packs
        .into_iter()
        .enumerate()
        .map(|(at, pack)| (pack.cost(cost), at, pack))
        .collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut dealt: Vec<(f64, Vec<Pack>)> = (0..ranks).map(|_| (0.0, Vec::new())).collect();
    for (cost, _, pack) in order {
        let least = (0..ranks)
            .min_by(|a, b| dealt[*a].0.total_cmp(&dealt[*b].0).then(a.cmp(b)))
            .unwrap_or(0);
        dealt[least].0 += cost;
        dealt[least].1.push(pack);
    }
    dealt.into_iter().map(|(_, packs)| packs).collect()
}

/// The members' trie, flat.
fn lay_out(rows: &[Used<'_>], members: Vec<usize>) -> Pack {
    let nodes = trie(rows, members);
    let sizes = sizes(&nodes);
    let mut pack = Pack::default();
    let mut places = vec![0usize; nodes.len()];
    for root in &nodes[0].children {
        path(&nodes, &sizes, rows, *root, &mut pack, &mut places);
    }
    let mut ended: Vec<(usize, usize)> = (0..nodes.len())
        .flat_map(|at| nodes[at].ends.iter().map(move |row| (*row, at)))
        .collect();
    ended.sort();
    for (member, leaf) in ended {
        let row = &rows[member];
        // From the last node up, then in order.
        let mut place = vec![0usize; row.tokens.len()];
        let mut node = leaf;
        while node != 0 {
            let Node { range, parent, .. } = &nodes[node];
            let end = range.end.min(row.tokens.len());
            for (offset, place) in place[range.start..end].iter_mut().enumerate() {
                *place = places[node] + offset;
            }
            node = *parent;
        }
        pack.entries.extend(row.source.trained().map(|token| Entry {
            at: place[token - 1],
            row: row.row,
            token,
        }));
    }
    pack
}

/// Lays out the heavy path that begins at `top`, then its branches.
fn path(nodes: &[Node], sizes: &[usize], rows: &[Used<'_>], top: usize, pack: &mut Pack, places: &mut [usize]) {
    let begin = pack.tokens.len();
    let mut hangs: Vec<(usize, Vec<usize>)> = Vec::new();
    let mut node = Some(top);
    while let Some(at) = node {
        let Node {
            from,
            range,
            children,
            parent,
            ..
        } = &nodes[at];
        places[at] = pack.tokens.len();
        let tokens = &rows[*from].tokens[range.clone()];
        let mut prefix = match nodes[*parent].range.len() {
            0 => 0,
            above => pack.prefixes[places[*parent] + above - 1],
        };
        for token in tokens {
            prefix = mixed(prefix ^ u64::from(*token));
            pack.prefixes.push(prefix);
        }
        pack.runs.push(Run {
            at: pack.tokens.len(),
            row: rows[*from].row,
            tokens: range.clone(),
        });
        pack.tokens.extend_from_slice(tokens);
        pack.positions.extend(range.clone());
        let heavy = children
            .iter()
            .copied()
            .max_by_key(|child| (sizes[*child], std::cmp::Reverse(*child)));
        let light: Vec<usize> = children.iter().copied().filter(|child| Some(*child) != heavy).collect();
        if !light.is_empty() {
            hangs.push((pack.tokens.len(), light));
        }
        node = heavy;
    }
    let own = begin..pack.tokens.len();
    pack.pieces.push(Piece {
        queries: own.clone(),
        keys: own,
        causal: true,
    });
    for (end, light) in hangs {
        let first = pack.tokens.len();
        for child in light {
            path(nodes, sizes, rows, child, pack, places);
        }
        pack.pieces.push(Piece {
            queries: first..pack.tokens.len(),
            keys: begin..end,
            causal: false,
        });
    }
}
