//! The texts before the policy's first answer.
//!
//! The texts are those of SWE-PDB, <https://github.com/p81sunshine/Issta-2026> at commit 8a491e3: the system prompts of
//! its agent (`rl/rllm/agents/system_prompts.py`, Apache-2.0) and the descriptions of its tools, a fork of
//! <https://github.com/microsoft/debug-gym> (MIT). A policy that was tuned there reads the same here.

use super::Switches;
use grpo_crds::agent::Toolset;

const PDB: &str = include_str!("prompts/pdb.txt");
const REWRITE: &str = include_str!("prompts/rewrite.txt");
/// Replaces the problem statement of KodCode rows, which says less. Other rows show their own.
pub const TASK: &str = "{% if task.repo == 'KodCode' %}The program doesn't behave as intended. Investigate the \
    repository, figure out the root cause, then rewrite the code to fix the issue. You should not rewrite the whole \
    file, you should debug the code to fix the issue. Make sure all tests pass.{% else %}{{ task.problem_statement }}\
    {% endif %}";

/// The system message of a set of tools.
pub fn system(toolset: Toolset) -> &'static str {
    match toolset {
        Toolset::Pdb => PDB,
        Toolset::Rewrite => REWRITE,
    }
}

/// The end of the system message: the files of the working directory.
pub fn files(directory: &str, tree: &str) -> String {
    format!(
        "\n\nCurrent dir is {directory}. Listing files in the current working directory.{tree} (read-only) indicates \
         read-only files. Max depth: 1.\n"
    )
}

/// The tools, as a JSON array in OpenAI's form, in the original's order.
pub fn tools(switches: &Switches) -> String {
    let has_pdb = switches.toolset == Toolset::Pdb;
    let all = [
        (true, include_str!("schemas/view.json")),
        (true, include_str!("schemas/listdir.json")),
        (true, include_str!("schemas/eval.json")),
        (true, include_str!("schemas/rewrite.json")),
        (has_pdb, include_str!("schemas/pdb.json")),
        (switches.grep, include_str!("schemas/grep.json")),
        (switches.bash, include_str!("schemas/bash.json")),
    ];
    let shown: Vec<&str> = all
        .into_iter()
        .filter(|(is_on, _)| *is_on)
        .map(|(_, schema)| schema)
        .collect();
    format!("[{}]", shown.join(", "))
}

#[cfg(test)]
mod tests;
