//! The texts of the bash loop's presets.
//!
//! `MiniSweAgent1` has the texts of mini-swe-agent 1.12.0 for SWE-bench (`config/extra/swebench.yaml`, and the text of
//! `agents/default.py` about a command that timed out), `MiniSweAgentPlus` those of mini-swe-agent-plus
//! (`config/extra/swebench_add_edit_tool.yaml` of <https://github.com/Kwai-Klear/mini-swe-agent-plus>, commit 0ea04fa).
//! Both projects have the MIT licence: Copyright (c) 2025 Kilian A. Lieret and Carlos E. Jimenez. The policy reads the
//! same characters as there: `e2e/presets/record.py` renders the originals, and a test compares. Two things differ: the
//! names of variables, and the lines about the edit tool, which appear only with the tool.

use grpo_crds::agent::BashPreset;

/// The text about the edit tool.
pub const EDIT_TOOL: &str = include_str!("presets/edit_tool.txt");

/// The longest output that is kept for the preset `Plain`, head and tail together, in bytes.
const PLAIN_OUTPUT: u64 = 16 << 10;
/// The originals show 5,000 characters of head and of tail, and count the rest; a character has up to 4 bytes.
const MINI_SWE_AGENT_OUTPUT: u64 = 64 << 10;

/// The templates and settings of a preset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    pub system: &'static str,
    pub task: &'static str,
    pub observation: &'static str,
    pub format_error: &'static str,
    pub sentinel: &'static str,
    /// Whether the edit tool belongs to it.
    pub edit_tool: bool,
    /// The longest output of a command that its observation needs, in bytes.
    pub output_bytes: u64,
}

impl Preset {
    pub fn of(preset: BashPreset) -> Self {
        let one = Self {
            system: include_str!("presets/mini_swe_agent/system.jinja"),
            task: include_str!("presets/mini_swe_agent/task_1.jinja"),
            observation: include_str!("presets/mini_swe_agent/observation.jinja"),
            format_error: include_str!("presets/mini_swe_agent/format_error.jinja"),
            sentinel: "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",
            edit_tool: false,
            output_bytes: MINI_SWE_AGENT_OUTPUT,
        };
        match preset {
            BashPreset::Plain => Self {
                system: include_str!("presets/plain/system.jinja"),
                task: include_str!("presets/plain/task.jinja"),
                observation: include_str!("presets/plain/observation.jinja"),
                format_error: include_str!("presets/plain/format_error.jinja"),
                sentinel: "COMPLETE_TASK_AND_SUBMIT",
                edit_tool: false,
                output_bytes: PLAIN_OUTPUT,
            },
            BashPreset::MiniSweAgent1 => one,
            BashPreset::MiniSweAgentPlus => Self {
                task: include_str!("presets/mini_swe_agent/task_plus.jinja"),
                sentinel: "MINI_SWE_AGENT_FINAL_OUTPUT",
                edit_tool: true,
                ..one
            },
        }
    }
}

#[cfg(test)]
mod tests;
