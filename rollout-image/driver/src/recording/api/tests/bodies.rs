//! Bodies as clients write them: keys, order, spaces and spelling are theirs, the texts are shortened.

/// 0.24.4. JavaScript rewrote the arguments: an integer key leads, and a long number lost its end. The text of the
/// first tool ends within a character.
pub const QWEN_CODE: &[u8] = include_bytes!("bodies/qwen_code.json");
/// 2.4.6 with LiteLLM, tools.
pub const MINI_SWE_AGENT: &[u8] = include_bytes!("bodies/mini_swe_agent.json");
/// The same without tools; a rejected answer is left out.
pub const MINI_SWE_AGENT_TEXT: &[u8] = include_bytes!("bodies/mini_swe_agent_text.json");
/// Responses; reasoning comes back as `encrypted_content` only.
pub const CODEX: &[u8] = include_bytes!("bodies/codex.json");
/// Messages, as Claude Code writes them.
pub const CLAUDE: &[u8] = include_bytes!("bodies/claude.json");

/// Gemini's API, as gemini-cli writes it: thoughts are left out, their signature is kept.
pub const GEMINI_CLI: &[u8] = include_bytes!("bodies/gemini_cli.json");

pub const ALL: [&[u8]; 6] = [
    QWEN_CODE,
    MINI_SWE_AGENT,
    MINI_SWE_AGENT_TEXT,
    CODEX,
    CLAUDE,
    GEMINI_CLI,
];
