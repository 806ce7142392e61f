//! The list of the tasks that a run of mode Validate found fit, from the run's store: one list for each set.

use crate::error::Error;
use crate::records::Source;
use crate::tasks::wanted_sets;
use grpo_crds::GrpoRun;
use grpo_crds::grpo_run::Mode;
use grpo_records::look::{Refusal, RefusalCause, RefusalCode};
use grpo_records::paths;
use grpo_records::show::harmless;
use kube::ResourceExt;

/// The set whose list is requested, by its name in reports. Refuses a run without such a list.
pub fn set_of_run(run: &GrpoRun, wanted: Option<&str>) -> Result<String, Error> {
    let name = run.name_any();
    if run.spec.mode != Mode::Validate {
        let mode = run.spec.mode;
        return Err(Error::NotValidating { run: name, mode });
    }
    let wanted: Vec<String> = wanted.map(str::to_owned).into_iter().collect();
    only(wanted_sets(run, &wanted)?, &format!("GrpoRun {name}"))
}

/// One list is for one set: a run that selects names of another set's tasks would end with TaskNotFound.
fn only(mut sets: Vec<String>, place: &str) -> Result<String, Error> {
    match (sets.pop(), sets.is_empty()) {
        (Some(set), true) => Ok(set),
        (last, _) => Err(Error::WhichSet {
            place: place.to_owned(),
            there: sets.into_iter().chain(last).collect::<Vec<_>>().join(", "),
        }),
    }
}

/// The list of a set. It exists when all tasks of the set are done.
pub async fn list(source: &mut Source, run: &str, set: &str) -> Result<String, Error> {
    let missing = || Error::NotValidated {
        run: run.to_owned(),
        set: set.to_owned(),
    };
    read(source, set).await?.ok_or_else(missing)
}

/// The list in a copied store, which does not name the sets of its run.
pub async fn list_of_copy(source: &mut Source, wanted: Option<&str>) -> Result<String, Error> {
    let files = source.files(paths::VALIDATION).await?;
    let there: Vec<String> = files.iter().filter_map(|file| set_of_list(&file.path)).collect();
    if there.is_empty() {
        return Err(Error::NoValidation);
    }
    let set = match wanted {
        None => only(there, "the store")?,
        Some(set) if there.iter().any(|name| name == set) => set.to_owned(),
        Some(set) => {
            return Err(Error::NoList {
                set: set.to_owned(),
                there: there.join(", "),
            });
        }
    };
    read(source, &set).await?.ok_or(Error::NoValidation)
}

/// The set that a list file belongs to.
fn set_of_list(path: &str) -> Option<String> {
    let name = path.strip_prefix(paths::VALIDATION)?.strip_prefix('/')?;
    let set = name.strip_suffix(".txt")?;
    (paths::validated_ids(set) == path && !set.contains('/')).then(|| set.to_owned())
}

/// Text that tasks printed cannot control the terminal.
async fn read(source: &mut Source, set: &str) -> Result<Option<String>, Error> {
    let path = paths::validated_ids(set);
    let Some(bytes) = source.whole_file(&path).await? else {
        return Ok(None);
    };
    let text = String::from_utf8(bytes).map_err(|error| {
        Error::Records(Refusal {
            code: RefusalCode::Unreadable,
            message: format!("{path} of the store cannot be read: {error}"),
            fault: RefusalCause::Infrastructure,
        })
    })?;
    Ok(Some(harmless(&text).into_owned()))
}

#[cfg(test)]
mod tests;
