//! Grafana's dashboards, as panels with queries; [`Dashboard::grafana`] makes the JSON that Grafana imports.
//!
//! Each dashboard is a file of this module. A query has `ON` where the dashboard's variables select: `a{ON}` becomes
//! `a{namespace=~"$namespace",run=~"$run"}`.

mod engines;
mod operator;
mod run;
mod sandboxes;

use serde_json::{Value, json};

/// Version of Grafana's dashboard format (Grafana 10 and later read it).
const SCHEMA_VERSION: u32 = 39;
/// Grafana's grid has 24 columns: three panels in a row.
const COLUMNS: u32 = 24;
const WIDTH: u32 = 8;
const HEIGHT: u32 = 8;

/// A dashboard.
pub struct Dashboard {
    /// File name and Grafana's uid, without `grpo-`.
    pub name: &'static str,
    pub title: &'static str,
    pub description: &'static str,
    /// Labels with which a reader selects, from the outer to the inner, each with the metric that has its values.
    pub variables: &'static [(&'static str, &'static str)],
    pub sections: Vec<Section>,
}

/// A row with a title and its panels.
pub struct Section {
    pub title: &'static str,
    pub panels: Vec<Panel>,
}

/// One chart or number.
pub struct Panel {
    pub title: &'static str,
    /// What it shows, and what to do about it.
    pub description: &'static str,
    /// A unit of Grafana: `short`, `s`, `bytes`, `percentunit`, `ops`.
    pub unit: &'static str,
    pub shape: Shape,
    /// Legend and query.
    pub queries: Vec<(&'static str, &'static str)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Lines over time.
    Lines,
    /// Areas over time, one on top of the other.
    Stack,
    /// The last value.
    Number,
}

/// All dashboards of the chart.
pub fn all() -> Vec<Dashboard> {
    vec![
        run::dashboard(),
        sandboxes::dashboard(),
        engines::dashboard(),
        operator::dashboard(),
    ]
}

fn panel(
    shape: Shape,
    title: &'static str,
    unit: &'static str,
    description: &'static str,
    queries: &[(&'static str, &'static str)],
) -> Panel {
    Panel {
        title,
        description,
        unit,
        shape,
        queries: queries.to_vec(),
    }
}

fn lines(
    title: &'static str,
    unit: &'static str,
    description: &'static str,
    queries: &[(&'static str, &'static str)],
) -> Panel {
    panel(Shape::Lines, title, unit, description, queries)
}

fn stack(
    title: &'static str,
    unit: &'static str,
    description: &'static str,
    queries: &[(&'static str, &'static str)],
) -> Panel {
    panel(Shape::Stack, title, unit, description, queries)
}

fn number(title: &'static str, unit: &'static str, description: &'static str, query: &'static str) -> Panel {
    panel(Shape::Number, title, unit, description, &[("", query)])
}

impl Dashboard {
    /// The matchers of the dashboard's variables.
    fn selection(&self) -> String {
        let matchers = self.variables.iter().map(|(label, _)| format!("{label}=~\"${label}\""));
        matchers.collect::<Vec<_>>().join(",")
    }

    /// A query with the dashboard's variables.
    fn query(&self, query: &str) -> String {
        query.replace("{ON", &format!("{{{}", self.selection()))
    }

    /// Each query of each panel, with every value of the variables selected.
    pub fn queries(&self) -> Vec<(&'static str, String)> {
        let panels = self.sections.iter().flat_map(|section| &section.panels);
        panels
            .flat_map(|panel| panel.queries.iter().map(move |(_, query)| (panel.title, *query)))
            .map(|(title, query)| {
                let selected = self.query(query);
                let everything = |text: String, (label, _): &(&str, &str)| text.replace(&format!("${label}"), ".*");
                (title, self.variables.iter().fold(selected, everything))
            })
            .collect()
    }

    /// The dashboard as Grafana imports it.
    pub fn grafana(&self) -> Value {
        let mut panels = Vec::new();
        let (mut id, mut top) = (0, 0);
        for section in &self.sections {
            id += 1;
            panels.push(json!({
                "id": id, "type": "row", "title": section.title, "collapsed": false, "panels": [],
                "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": top},
            }));
            top += 1;
            for (place, panel) in section.panels.iter().enumerate() {
                id += 1;
                let (row, column) = (place as u32 * WIDTH / COLUMNS, place as u32 * WIDTH % COLUMNS);
                let at = json!({"h": HEIGHT, "w": WIDTH, "x": column, "y": top + row * HEIGHT});
                panels.push(self.panel(panel, id, at));
            }
            top += (section.panels.len() as u32 * WIDTH).div_ceil(COLUMNS) * HEIGHT;
        }
        json!({
            "uid": format!("grpo-{}", self.name),
            "title": self.title,
            "description": self.description,
            "tags": ["grpo-operator"],
            "schemaVersion": SCHEMA_VERSION,
            "editable": true,
            "graphTooltip": 1,
            "refresh": "30s",
            "time": {"from": "now-3h", "to": "now"},
            "links": [{
                "title": "grpo-operator", "type": "dashboards", "tags": ["grpo-operator"], "asDropdown": true,
                "icon": "external link", "tooltip": "", "url": "", "targetBlank": false, "includeVars": true,
                "keepTime": true,
            }],
            "annotations": {"list": []},
            "templating": {"list": self.templating()},
            "panels": panels,
        })
    }

    fn panel(&self, panel: &Panel, id: u32, at: Value) -> Value {
        let source = json!({"type": "prometheus", "uid": "${datasource}"});
        let targets = panel.queries.iter().zip('A'..).map(|((legend, query), letter)| {
            json!({
                "refId": letter.to_string(), "datasource": source, "expr": self.query(query),
                "legendFormat": if legend.is_empty() { "__auto" } else { legend }, "range": true,
            })
        });
        let targets: Vec<Value> = targets.collect();
        let stacked = panel.shape == Shape::Stack;
        let (kind, custom, options) = match panel.shape {
            Shape::Number => (
                "stat",
                json!({}),
                json!({
                    "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": false},
                    "graphMode": "area", "colorMode": "value", "textMode": "auto", "justifyMode": "auto",
                    "orientation": "auto", "wideLayout": true, "showPercentChange": false,
                    "percentChangeColorMode": "standard",
                }),
            ),
            Shape::Lines | Shape::Stack => (
                "timeseries",
                json!({
                    "drawStyle": "line", "lineWidth": 1, "showPoints": "never",
                    "fillOpacity": if stacked { 30 } else { 0 },
                    "stacking": {"group": "A", "mode": if stacked { "normal" } else { "none" }},
                }),
                json!({
                    "legend": {"calcs": ["lastNotNull"], "displayMode": "list", "placement": "bottom", "showLegend": true},
                    "tooltip": {"mode": "multi", "sort": "desc"},
                }),
            ),
        };
        json!({
            "id": id, "type": kind, "title": panel.title, "description": panel.description,
            "datasource": source, "gridPos": at, "targets": targets, "options": options,
            "fieldConfig": {"defaults": {"unit": panel.unit, "custom": custom}, "overrides": []},
        })
    }

    /// The variables: the data source, then the labels, each from the values under the outer ones.
    fn templating(&self) -> Vec<Value> {
        let mut list = vec![json!({
            "name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "hide": 0,
            "current": {"text": "default", "value": "default"}, "refresh": 1,
        })];
        let mut outer = Vec::new();
        for (label, metric) in self.variables {
            let query = format!("label_values({metric}{{{}}}, {label})", outer.join(","));
            outer.push(format!("{label}=~\"${label}\""));
            list.push(json!({
                "name": label, "label": label, "type": "query", "hide": 0, "refresh": 2, "sort": 1,
                "datasource": {"type": "prometheus", "uid": "${datasource}"},
                "query": {"query": query, "refId": "A"}, "definition": query,
                "includeAll": true, "allValue": ".*", "multi": true, "current": {"text": "All", "value": "$__all"},
            }));
        }
        list
    }
}
