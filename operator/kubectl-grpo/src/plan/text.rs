//! A plan as text.

use super::report::{DiskRow, FitRow, MemoryRow, PodRow, Report, SpeedRow};
use crate::text::{paragraph, table};
use grpo_memory::in_words;
use std::fmt::Write;

const WIDTH: usize = 120;
/// The number of pods named for a node.
const PODS_NAMED: usize = 4;
/// The number of nodes named.
const NODES_NAMED: usize = 16;

pub fn text(report: &Report) -> String {
    let mut out = String::new();
    section(&mut out, "Checks", checks(report));
    section(&mut out, "Pods that the operator creates", pods(report));
    section(&mut out, "Memory", memory(&report.memory));
    section(&mut out, "Speed of training", speed(report));
    section(&mut out, "Downloads", downloads(report));
    section(&mut out, "Disk", disk(&report.disk));
    section(&mut out, "Weights on the network, each iteration", weights(report));
    section(&mut out, "Has to exist", lines(&report.needs));
    section(&mut out, "Nodes", nodes(report));
    section(&mut out, "Warnings", items(&report.warnings));
    section(&mut out, "Problems", items(&report.problems));
    out
}

/// Leaves out an empty section.
fn section(out: &mut String, head: &str, body: String) {
    if !body.is_empty() {
        let before = if out.is_empty() { "" } else { "\n" };
        *out += &format!("{before}{head}\n");
        *out += &indented(&body);
    }
}

/// Indents every line by two columns.
fn indented(body: &str) -> String {
    body.lines()
        .map(|line| format!("  {line}").trim_end().to_owned() + "\n")
        .collect()
}

fn lines(lines: &[String]) -> String {
    lines.iter().map(|line| line.clone() + "\n").collect()
}

/// Sentences, each after a dash.
fn items(items: &[String]) -> String {
    items
        .iter()
        .map(|item| paragraph(&format!("- {item}"), "", WIDTH))
        .collect()
}

fn checks(report: &Report) -> String {
    let rows: Vec<Vec<String>> = report
        .manifests
        .iter()
        .map(|manifest| {
            let rules = match (manifest.refused.len(), manifest.unchecked.len()) {
                (0, 0) => "accepted".to_owned(),
                (0, unchecked) => format!("accepted; {unchecked} not checked"),
                (refused, _) => format!("refused: {refused}"),
            };
            let fields = match (manifest.refused.is_empty(), manifest.not_executed.len()) {
                (false, _) => "-".to_owned(),
                (true, 0) => "all".to_owned(),
                (true, fields) => format!("all but {fields}"),
            };
            vec![
                format!("{} {}", manifest.kind, manifest.name),
                rules,
                fields,
                manifest.file.clone(),
            ]
        })
        .collect();
    let unchecked = report.manifests.iter().flat_map(|manifest| &manifest.unchecked);
    let unchecked: Vec<String> = unchecked.map(|rule| format!("not checked here: {rule}")).collect();
    table(&["MANIFEST", "RULES OF THE API", "FIELDS EXECUTED", "FILE"], &rows) + &items(&unchecked)
}

fn cpus(millis: i64) -> String {
    match millis % 1000 {
        0 => (millis / 1000).to_string(),
        _ => format!("{millis}m"),
    }
}

/// In the notation of manifests: the largest unit without a remainder.
fn memory_of(bytes: i64) -> String {
    let units = [("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)];
    let whole = units.iter().find(|(_, shift)| bytes > 0 && bytes % (1 << shift) == 0);
    whole.map_or_else(
        || bytes.to_string(),
        |(unit, shift)| format!("{}{unit}", bytes >> shift),
    )
}

fn count(number: i64) -> String {
    match number {
        0 => "-".to_owned(),
        number => number.to_string(),
    }
}

fn pods(report: &Report) -> String {
    let mut rows: Vec<Vec<String>> = report.pods.iter().map(pod).collect();
    for pool in &report.sandboxes {
        rows.push(vec![
            pool.of.clone(),
            "sandbox".to_owned(),
            format!("0 to {}", pool.at_most),
            "-".to_owned(),
            cpus(pool.cpu_millis),
            memory_of(pool.memory_bytes),
            String::new(),
            "spec.max; made as they are leased".to_owned(),
        ]);
    }
    if rows.is_empty() {
        return String::new();
    }
    let head = ["OF", "ROLE", "PODS", "GPUS", "CPU", "MEMORY", "OTHER", "FROM"];
    let pods: u32 = report.pods.iter().map(|row| row.count).sum();
    let own: i64 = report.pods.iter().map(|row| row.gpus * i64::from(row.count)).sum();
    let gpus = own + report.shared_gpus;
    let besides = if report.sandboxes.is_empty() {
        ""
    } else {
        ", besides sandboxes"
    };
    let words =
        format!("GPUs, CPU and memory are what each pod requests. Together {pods} pods and {gpus} GPUs{besides}.");
    let shared = match report.shared_gpus {
        0 => String::new(),
        shared => paragraph(
            &format!(
                "{shared} GPUs are shared: trainer and engines take turns on them (trainer.colocate), and each is counted once."
            ),
            "",
            WIDTH,
        ),
    };
    table(&head, &rows) + &words + "\n" + &shared
}

fn pod(row: &PodRow) -> Vec<String> {
    let others = row.others.iter().map(|(name, amount)| format!("{amount} {name}"));
    vec![
        row.of.clone(),
        row.role.clone(),
        row.count.to_string(),
        match row.shared_gpus {
            0 => count(row.gpus),
            shared => format!("{shared} shared"),
        },
        cpus(row.cpu_millis),
        memory_of(row.memory_bytes),
        others.collect::<Vec<_>>().join(", "),
        row.from.clone(),
    ]
}

fn sum(parts: &[(String, u64)]) -> String {
    let words = parts.iter().map(|(part, bytes)| format!("{part} {}", in_words(*bytes)));
    words.collect::<Vec<_>>().join(" + ")
}

fn memory(rows: &[MemoryRow]) -> String {
    let mut out = String::new();
    for row in rows {
        let bytes = row.bytes.map_or_else(|| "-".to_owned(), in_words);
        let has = row
            .has_bytes
            .map(|has| format!(" of {}", in_words(has)))
            .unwrap_or_default();
        let _ = writeln!(out, "{}, {}: {bytes}{has}", row.of, row.each);
        if !row.parts.is_empty() {
            out += &paragraph(&sum(&row.parts), "  ", WIDTH);
        }
        for note in &row.notes {
            out += &paragraph(note, "  ", WIDTH);
        }
    }
    out
}

fn downloads(report: &Report) -> String {
    let rows: Vec<Vec<String>> = report
        .downloads
        .iter()
        .map(|row| {
            let times = match row.at_most {
                true => format!("at most {}, once a node", row.times),
                false => row.times.to_string(),
            };
            let all = in_words(row.bytes * u64::from(row.times));
            vec![row.of.clone(), row.what.clone(), in_words(row.bytes), times, all]
        })
        .collect();
    let images = "Not in it: images and datasets, whose sizes only their servers know. The model's size is that of its name, in 16 bits.";
    match rows.is_empty() {
        true => String::new(),
        false => table(&["OF", "WHAT", "BYTES", "TIMES", "TOGETHER"], &rows) + &paragraph(images, "", WIDTH),
    }
}

fn disk(rows: &[DiskRow]) -> String {
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let has = row.has_bytes.map_or_else(|| "-".to_owned(), in_words);
            let known = if row.parts.is_empty() {
                "episodes only".to_owned()
            } else {
                in_words(row.bytes)
            };
            vec![row.of.clone(), row.place.clone(), known, has, sum(&row.parts)]
        })
        .collect();
    match rows.is_empty() {
        true => String::new(),
        false => table(&["OF", "PLACE", "WRITTEN", "ASKED FOR", "WHAT"], &rows),
    }
}

fn speed(report: &Report) -> String {
    let row = |row: &SpeedRow| {
        vec![
            row.of.clone(),
            format!("{} {}", row.gpus, row.gpu),
            row.row.to_string(),
            row.tokens_per_second.to_string(),
            if row.kept { "kept" } else { "computed twice" }.to_owned(),
        ]
    };
    let rows: Vec<Vec<String>> = report.speed.iter().map(row).collect();
    match rows.is_empty() {
        true => String::new(),
        false => {
            let head = ["OF", "GPUS", "TOKENS A ROW", "TOKENS A SECOND, EACH GPU", "ACTIVATIONS"];
            table(&head, &rows)
                + &paragraph(
                    "By arithmetic: within a tenth of steps on an H200. Too fast for deterministic steps of short samples, and with offloaded state. What ranks send each other is not counted.",
                    "",
                    WIDTH,
                )
        }
    }
}

fn weights(report: &Report) -> String {
    let rows: Vec<Vec<String>> = report
        .weights
        .iter()
        .map(|row| {
            vec![
                row.of.clone(),
                in_words(row.version_bytes),
                row.pulls.to_string(),
                in_words(row.iteration_bytes),
            ]
        })
        .collect();
    match rows.is_empty() {
        true => String::new(),
        false => table(&["OF", "A VERSION", "REPLICAS THAT PULL IT", "WRITTEN AND READ"], &rows),
    }
}

fn nodes(report: &Report) -> String {
    let Some(nodes) = &report.nodes else {
        return paragraph(
            "Not looked at. `--nodes FILE` lays the pods on the nodes of a file (`kubectl get nodes -o yaml`), `--server` on those of the cluster.",
            "",
            WIDTH,
        );
    };
    let pods = match nodes.pods_known {
        true => "beside the pods that are on them",
        false => "as if they were empty",
    };
    let mut out = format!(
        "{} nodes with {} GPUs ({}), {pods}\n",
        nodes.count, nodes.gpus, nodes.from
    );
    for fit in &nodes.fits {
        out += &place(fit);
    }
    for pool in &report.sandboxes {
        if let Some(fit) = pool.fit {
            let _ = writeln!(
                out,
                "{}: {fit} sandboxes fit beside these pods, at most {} are made",
                pool.of, pool.at_most
            );
        }
    }
    out
}

fn place(fit: &FitRow) -> String {
    if !fit.fits {
        let reason = fit.reason.as_deref().unwrap_or_default();
        return format!("{}: does not fit ({reason}); see below\n", fit.of);
    }
    let mut out = format!("{}: fits\n", fit.of);
    let mut named = fit.places.iter();
    for (node, pods) in named.by_ref().take(NODES_NAMED) {
        let mut shown: Vec<&str> = pods.iter().take(PODS_NAMED).map(String::as_str).collect();
        let more = format!("{} more", pods.len().saturating_sub(PODS_NAMED));
        if pods.len() > PODS_NAMED {
            shown.push(&more);
        }
        let _ = writeln!(out, "  {node}: {}", shown.join(", "));
    }
    match named.count() {
        0 => {}
        more => {
            let _ = writeln!(out, "  and {more} more nodes");
        }
    }
    out
}

#[cfg(test)]
mod tests;
