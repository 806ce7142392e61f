//! The files of `docs/values`: settings of a script, and the fields that have them.

use std::{collections::BTreeMap, fs, path::Path};

use serde::Deserialize;
use serde_json::Value;

/// The key of the source of rows that name none.
pub const SCRIPT: &str = "script";
/// The value of an optional field that is not set.
pub const LEFT_OUT: &str = "left out";

/// One file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Values {
    /// Why no script stands beside the manifest.
    pub because: Option<String>,
    #[serde(default)]
    pub sources: BTreeMap<String, Source>,
    /// The file in `shared/` whose rows hold for this script too.
    pub shared: Option<String>,
    #[serde(default)]
    pub settings: Vec<Row>,
}

/// A file of a public repository.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Owner and name on GitHub.
    pub repository: String,
    pub commit: String,
    pub file: String,
}

/// A setting of the script or, without `name`, a value that only the manifest has.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Its name in the script, or several names.
    #[serde(default)]
    pub name: Names,
    /// Its value in the script.
    pub script: Option<Value>,
    /// That value in the manifest's words. Left out: `script`.
    pub means: Option<Value>,
    /// Path below `spec`, for example `tasks.evaluate[0].every`.
    pub field: Option<String>,
    /// Kind and name of the object. Left out: the manifest's GrpoRun.
    pub of: Option<String>,
    /// Which of `sources`.
    pub source: Option<String>,
    /// Why the manifest's value differs, or why no field has it.
    pub because: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(untagged)]
pub enum Names {
    #[default]
    None,
    One(String),
    Several(Vec<String>),
}

impl Names {
    pub fn all(&self) -> &[String] {
        match self {
            Self::None => &[],
            Self::One(name) => std::slice::from_ref(name),
            Self::Several(names) => names,
        }
    }
}

impl Values {
    /// A file with the rows that it shares.
    pub fn read(folder: &Path, name: &str) -> Self {
        let mut values = Self::file(&folder.join(format!("{name}.yaml")));
        if let Some(shared) = &values.shared {
            let shared = Self::file(&folder.join(format!("shared/{shared}.yaml")));
            values.settings.extend(shared.settings);
            for (key, source) in shared.sources {
                values.sources.entry(key).or_insert(source);
            }
        }
        values
    }

    fn file(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        serde_yaml_ng::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }
}

impl Row {
    /// The script's value in the manifest's words.
    pub fn wanted(&self) -> Option<&Value> {
        self.means.as_ref().or(self.script.as_ref())
    }

    pub fn source(&self) -> &str {
        self.source.as_deref().unwrap_or(SCRIPT)
    }

    /// What a message calls it.
    pub fn title(&self) -> String {
        match self.name.all() {
            [] => self.field.clone().unwrap_or_default(),
            names => names.join(", "),
        }
    }
}
