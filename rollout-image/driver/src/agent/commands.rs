//! The environment of the policy's commands: variables, and the edit tool if the agent has it.

use crate::tasks::TaskEnvironment;
use grpo_crds::agent::Agent;
use grpo_sandbox_protocol::TOOLS;
use std::collections::BTreeMap;

/// Default variables, those of mini-swe-agent's configuration for SWE-bench: programs that wait for a reader or draw
/// progress are no use to a policy.
const QUIET: [(&str, &str); 5] = [
    ("PAGER", "cat"),
    ("MANPAGER", "cat"),
    ("LESS", "-R"),
    ("PIP_PROGRESS_BAR", "off"),
    ("TQDM_DISABLE", "1"),
];

/// Functions that bash takes from its environment: `python edit_via_str_replace`, as prompts have it, finds the tool
/// unless the repository has a file of that name. The tool is not in the repository, because it would be part of the
/// patch.
const PYTHON_FUNCTIONS: [(&str, &str); 2] = [
    (
        "BASH_FUNC_python%%",
        r#"() { if [ $# -gt 0 ] && [ "${1##*/}" = edit_via_str_replace ] && [ ! -e "$1" ]; then shift; edit_via_str_replace "$@"; else command python "$@"; fi; }"#,
    ),
    (
        "BASH_FUNC_python3%%",
        r#"() { if [ $# -gt 0 ] && [ "${1##*/}" = edit_via_str_replace ] && [ ! -e "$1" ]; then shift; edit_via_str_replace "$@"; else command python3 "$@"; fi; }"#,
    ),
];

/// The variables and programs of a run's commands. Each task adds its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandSurroundings {
    /// `spec.agent.env`, over [`QUIET`].
    pub variables: BTreeMap<String, String>,
    /// The edit tool is on the path.
    pub edit_tool: bool,
}

impl CommandSurroundings {
    /// From `spec.agent`.
    pub fn of(agent: &Agent, edit_tool: bool) -> Self {
        let quiet = QUIET.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let given = agent.env.iter().map(|it| (it.name.clone(), it.value.clone()));
        Self {
            variables: quiet.into_iter().chain(given).collect(),
            edit_tool,
        }
    }

    /// The variables of a command. The task's override the run's: without them its repository may not work.
    pub fn environment(&self, task: &TaskEnvironment) -> BTreeMap<String, String> {
        let mut all = self.variables.clone();
        if self.edit_tool {
            all.extend(PYTHON_FUNCTIONS.map(|(name, value)| (name.to_owned(), value.to_owned())));
        }
        all.extend(task.variables.clone());
        all
    }

    /// The script whose environment a command gets.
    pub fn activation(&self, task: &TaskEnvironment) -> Option<String> {
        if !self.edit_tool {
            return task.activation.clone();
        }
        let path = format!("export PATH=\"$PATH:{TOOLS}\"");
        Some(match &task.activation {
            // The script's last command must succeed, and the next line must not hide its failure.
            Some(script) => format!("{script}\n[ $? -eq 0 ] && {path}"),
            None => path,
        })
    }
}

#[cfg(test)]
mod tests;
