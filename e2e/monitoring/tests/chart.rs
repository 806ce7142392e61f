//! The chart's dashboards and rules follow from this crate, from the metrics that processes serve, and from the book.

#![allow(clippy::unwrap_used)]

use grpo_monitoring::dashboards::{self, Dashboard};
use grpo_monitoring::promql;
use grpo_monitoring::rules::RuleFile;
use grpo_records::StepMetrics;
use grpo_testing::repository;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

fn page(name: &str) -> String {
    fs::read_to_string(repository().join("docs/src").join(name)).unwrap()
}

fn rules() -> RuleFile {
    RuleFile::of_chart().unwrap()
}

/// Every name under which a series can be asked for.
fn known() -> BTreeSet<String> {
    let mut known = BTreeSet::from(["up".to_owned(), "grpo_trainer_step".to_owned()]);
    // The book's tables; tests beside each process hold them to what it serves.
    for line in page("metrics.md").lines() {
        let Some((name, rest)) = line.strip_prefix("| `").and_then(|row| row.split_once("` | ")) else {
            continue;
        };
        if rest.starts_with("histogram") {
            known.extend(["bucket", "sum", "count"].map(|part| format!("{name}_{part}")));
        }
        known.insert(name.to_owned());
    }
    let step = StepMetrics {
        seconds: 1.0,
        mfu: Some(0.4),
        held_out_loss: Some(0.1),
        expert_load_max: Some(1.0),
        experts_idle: Some(1),
        ..StepMetrics::default()
    };
    known.extend(
        step.numbers()
            .into_iter()
            .map(|(name, _)| format!("grpo_trainer_{name}")),
    );
    known.extend(["estimated", "available"].map(|of| format!("grpo_trainer_memory_{of}_bytes")));
    known.extend(rules().rules().filter_map(|rule| rule.record.clone()));
    known
}

fn is_of_another_engine(name: &str) -> bool {
    name.starts_with("vllm:") || name.starts_with("sglang:")
}

#[test]
fn the_dashboards_of_the_chart_are_those_of_this_crate() {
    let folder = grpo_monitoring::folder().join("dashboards");
    let mut expected = BTreeMap::new();
    for dashboard in dashboards::all() {
        let text = serde_json::to_string_pretty(&dashboard.grafana()).unwrap() + "\n";
        expected.insert(format!("{}.json", dashboard.name), text);
    }
    if std::env::var_os("UPDATE_DASHBOARDS").is_some() {
        for (name, text) in &expected {
            fs::write(folder.join(name), text).unwrap();
        }
    }
    let files = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap());
    let found: BTreeMap<String, String> = files
        .map(|file| {
            let name = file.file_name().into_string().unwrap();
            (name, fs::read_to_string(file.path()).unwrap())
        })
        .collect();
    assert!(
        found == expected,
        "run UPDATE_DASHBOARDS=1 cargo test -p grpo-monitoring, and commit {}",
        folder.display()
    );
}

#[test]
fn every_query_asks_for_metrics_that_are_served() {
    let known = known();
    let panels = dashboards::all();
    let of_panels = panels.iter().flat_map(Dashboard::queries);
    let rules = rules();
    let of_rules = rules.rules().map(|rule| ("a rule", rule.expr.clone()));
    let mut asked = BTreeSet::new();
    for (title, query) in of_panels.chain(of_rules) {
        let names = promql::metrics(&query).unwrap();
        assert!(!names.is_empty(), "{title}: {query} asks for nothing");
        for name in names.into_iter().filter(|name| !is_of_another_engine(name)) {
            assert!(
                known.contains(&name),
                "{title}: {name} is served by no process ({query})"
            );
            asked.insert(name);
        }
    }
    assert!(asked.len() > 60, "only {} metrics are shown", asked.len());
}

#[test]
fn a_reader_finds_each_panel_by_its_title_and_what_it_means() {
    for dashboard in dashboards::all() {
        let panels = dashboard.sections.iter().flat_map(|section| &section.panels);
        let mut titles = BTreeSet::new();
        for panel in panels {
            assert!(
                titles.insert(panel.title),
                "{}: {} is there twice",
                dashboard.name,
                panel.title
            );
            assert!(!panel.description.is_empty(), "{}: {}", dashboard.name, panel.title);
        }
    }
}

/// The alert's section in the book has its query, the time that it has to hold, and what to do.
#[test]
fn the_book_has_a_section_for_each_alert_with_its_query() {
    let page = page("operate/alerts.md");
    let sections: BTreeMap<&str, &str> = page
        .split("\n## ")
        .skip(1)
        .filter_map(|section| section.split_once('\n'))
        .filter(|(title, _)| title.starts_with("Grpo"))
        .collect();
    let rules = rules();
    let alerts = rules.alerts();
    assert_eq!(Vec::from_iter(sections.keys()), Vec::from_iter(alerts.keys()));
    for (name, rule) in alerts {
        let section = sections[name];
        let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            plain(section).contains(&plain(&rule.expr)),
            "{name}: the page has another query"
        );
        let hold = rule
            .hold
            .as_deref()
            .map_or("at once".to_owned(), |hold| format!("after {hold}"));
        let severity = &rule.labels["severity"];
        let head = format!("Severity {severity}, {hold}.");
        assert!(section.contains(&head), "{name}: the page does not have {head:?}");
        assert!(section.contains("**Next step:**"), "{name}: no next step");
        for part in ["summary", "description"] {
            assert!(rule.annotations.contains_key(part), "{name} has no {part}");
        }
    }
}
