//! A viewer without a server: a folder with the page and every view, for a web server, a bucket, or a colleague.
//!
//! Browsers let a page that was opened from a folder load scripts, but no data. So each view is a script that hands its
//! JSON to the page.

use super::assets;
use super::viewed::Viewed;
use super::wire::{Problem, RunsView};
use crate::error::Error;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    pub views: usize,
    /// Views that have an error in place of their content.
    pub failed: usize,
}

impl Written {
    pub fn in_words(self, dest: &Path) -> String {
        let failed = match self.failed {
            0 => String::new(),
            failed => format!("{failed} of them could not be read and show the error; "),
        };
        format!(
            "{} views; {failed}open {}\n",
            self.views,
            dest.join("index.html").display()
        )
    }
}

/// Writes the bundle of these runs.
pub async fn write(runs: &[Arc<Viewed>], dest: &Path) -> Result<Written, Error> {
    std::fs::create_dir_all(dest)?;
    // Written last, so a bundle that was interrupted shows an error.
    let view = RunsView {
        runs: runs.iter().map(|run| run.name()).collect(),
        live: false,
        bundle: true,
    };
    let mut written = Written::default();
    for (number, run) in runs.iter().enumerate() {
        let every = run.every().await?;
        let all = every.len();
        for wanted in every {
            let key = format!("{number}/{}", wanted.path());
            // One damaged episode does not end the work of an hour.
            let answer = match run.answer(&wanted).await {
                // The driver has ended, or the reader pod has reached its deadline.
                Err(Error::PodConnection { .. }) => {
                    run.open_again().await?;
                    run.answer(&wanted).await
                }
                answer => answer,
            };
            let json = match answer {
                Err(error @ (Error::EpisodeFile { .. } | Error::Records(_))) => {
                    written.failed += 1;
                    let message = error.to_string();
                    serde_json::to_vec(&Problem { message }).map_err(|error| Error::Viewer(error.to_string()))?
                }
                view => view?,
            };
            put(dest, &key, &json)?;
            written.views += 1;
            if written.views % 100 == 0 && std::io::stderr().is_terminal() {
                eprint!("\r{}: {} of {all} views ", run.name(), written.views);
            }
        }
    }
    if std::io::stderr().is_terminal() {
        eprint!("\r");
    }
    let runs = serde_json::to_vec(&view).map_err(|error| Error::Viewer(error.to_string()))?;
    put(dest, "runs", &runs)?;
    for (name, content) in [("app.js", assets::SCRIPT), ("app.css", assets::STYLE)] {
        std::fs::write(dest.join(name), content)?;
    }
    let with_data = "<script src=\"data/runs.js\"></script><script src=\"app.js\"";
    let page = assets::PAGE.replace("<script src=\"app.js\"", with_data);
    std::fs::write(dest.join("index.html"), page)?;
    Ok(written)
}

/// `key`: as in the server's paths; all its parts are plain names.
fn put(dest: &Path, key: &str, json: &[u8]) -> Result<(), Error> {
    let path = dest.join("data").join(format!("{key}.js"));
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let call = [
        b"(window.grpoData??={})[".as_slice(),
        &serde_json::to_vec(key).unwrap_or_default(),
        b"]=",
        json,
        b";\n",
    ];
    Ok(std::fs::write(path, call.concat())?)
}

#[cfg(test)]
mod tests;
