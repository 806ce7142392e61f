//! One call of a tool: its arguments, its work, its answer.

use super::arguments::{Arguments, Signature};
use super::bench::{Bench, Unread};
use super::{debugger, diff, eval, grep, rewrite, tree, view};
use crate::episode::work::Halt;

/// The longest output of a command that is kept for a tool's answer, in bytes.
const OUTPUT: u64 = 1 << 20;
/// The depth of the deepest tree that is drawn.
const DEEPEST: i64 = 20;

pub const NO_NAME: &str = "Empty tool name in action. This may indicate a parsing error in the agent's response. \
    Please ensure your tool call includes a valid tool name.";

const NO_PATH: &str = concat!("File path is ", "None.");

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub text: String,
    /// All tests passed.
    pub solved: bool,
}

impl From<String> for Answer {
    fn from(text: String) -> Self {
        Self { text, solved: false }
    }
}

/// Carries out a call. Everything that a policy can write gets a text as its answer.
pub async fn call(bench: &mut Bench<'_, '_>, tool: &str, arguments: &str) -> Result<Answer, Halt> {
    let signature = match tool {
        "view" => signature(
            "ViewTool",
            &["path"],
            &["start", "end", "include_line_numbers_and_breakpoints"],
        ),
        "listdir" => signature("ListdirTool", &[], &["path", "depth"]),
        "eval" => signature("EvalTool", &[], &[]),
        "rewrite" => signature("RewriteTool", &[], &["path", "start", "end", "new_code"]),
        "pdb" if bench.switches.toolset == grpo_crds::agent::Toolset::Pdb => {
            signature("PDBTool", &["command"], &["runner", "file"])
        }
        "grep" if bench.switches.grep => signature(
            "GrepTool",
            &["pattern"],
            &["path", "regex", "case_sensitive", "line_numbers", "max_results"],
        ),
        "bash" if bench.switches.bash => signature("BashTool", &["command"], &[]),
        name if name.trim().is_empty() => return Ok(NO_NAME.to_owned().into()),
        name => return Ok(format!("Unregistered tool: {name}").into()),
    };
    let arguments = match Arguments::read(tool, arguments, &signature) {
        Ok(arguments) => arguments,
        Err(message) => return Ok(message.into()),
    };
    let done = match tool {
        "view" => view(bench, &arguments).await?.map(Answer::from),
        "listdir" => listdir(bench, &arguments).await?.map(Answer::from),
        "eval" => Ok(evaluate(bench).await?),
        "rewrite" => rewrite(bench, &arguments).await?,
        "pdb" => pdb(bench, &arguments).await?.map(Answer::from),
        "grep" => grep(bench, &arguments).await?.map(Answer::from),
        _ => bash(bench, &arguments).await?.map(Answer::from),
    };
    Ok(done.unwrap_or_else(Answer::from))
}

fn signature(class: &'static str, required: &'static [&'static str], optional: &'static [&'static str]) -> Signature {
    Signature {
        class,
        required,
        optional,
    }
}

/// The inner error is the one in the arguments.
type Done<T> = Result<Result<T, String>, Halt>;

/// Returns from a tool with the error in its arguments.
macro_rules! given {
    ($argument:expr) => {
        match $argument {
            Ok(value) => value,
            Err(message) => return Ok(Err(message)),
        }
    };
}

async fn view(bench: &mut Bench<'_, '_>, arguments: &Arguments<'_>) -> Done<String> {
    let path = given!(arguments.required("path")).trim().to_owned();
    let wanted = view::Wanted {
        start: given!(arguments.number("start")),
        end: given!(arguments.number("end")),
        // True by default in the schema; the original took null for false.
        numbered: given!(arguments.flag("include_line_numbers_and_breakpoints")).unwrap_or(true),
    };
    if path.is_empty() {
        return Ok(Ok("Invalid file path. Please specify a valid file path.".to_owned()));
    }
    Ok(Ok(match bench.read(&path).await? {
        Ok(text) => {
            let file = bench.resolved(&path).unwrap_or_default();
            view::shown(&path, &file, &text, wanted, &bench.memory.breakpoints)
        }
        Err(Unread::Folder) => draw(bench, &path, 1).await?,
        Err(Unread::Missing(why)) => format!("View failed. Error message:\n{why}"),
        Err(Unread::Unusable(why)) => why,
    }))
}

async fn listdir(bench: &mut Bench<'_, '_>, arguments: &Arguments<'_>) -> Done<String> {
    let path = given!(arguments.text("path")).unwrap_or(".").to_owned();
    // Optional in the schema; the original failed without it.
    let depth = given!(arguments.number("depth")).unwrap_or(1);
    if depth <= 0 {
        return Ok(Ok(format!("Depth must be 1 or greater, got `depth={depth}`")));
    }
    Ok(Ok(draw(bench, &path, depth.min(DEEPEST)).await?))
}

/// The tree of a folder.
pub async fn draw(bench: &mut Bench<'_, '_>, path: &str, depth: i64) -> Result<String, Halt> {
    let folder = match bench.resolved(path) {
        Ok(folder) => folder,
        Err(why) => return Ok(format!("Error listing directory '{path}': {why}")),
    };
    let listed = bench
        .run(tree::SCRIPT, &[&folder, &depth.to_string()], None, OUTPUT)
        .await?;
    Ok(match listed.output.split_once('\n') {
        Some(("D", entries)) => tree::drawn(&folder, entries),
        Some(("F", _)) => folder,
        _ if listed.timed_out => format!("Error listing directory '{path}': {}", bench.timed_out()),
        _ => format!("Error listing directory '{path}': {}", bench.missing(path)),
    })
}

/// Runs the task's tests.
async fn evaluate(bench: &mut Bench<'_, '_>) -> Result<Answer, Halt> {
    let Some(command) = bench.episode.plan.task.environment.test_command.clone() else {
        return Ok("The task has no test command.".to_owned().into());
    };
    let ran = bench.run(&command, &[], None, OUTPUT).await?;
    Ok(match ran.timed_out {
        true => bench.timed_out().into(),
        false => Answer {
            text: eval::cleaned(&ran.output),
            solved: ran.exit_code == Some(0),
        },
    })
}

async fn rewrite(bench: &mut Bench<'_, '_>, arguments: &Arguments<'_>) -> Done<Answer> {
    let failed = |why: &str| Ok(Err(rewrite::failed(why)));
    let code = given!(arguments.text("new_code")).unwrap_or_default();
    let (start, end) = (given!(arguments.number("start")), given!(arguments.number("end")));
    let Some(path) = given!(arguments.text("path")) else {
        return failed(NO_PATH);
    };
    let original = match bench.read(path).await? {
        Ok(text) => text,
        Err(Unread::Missing(why)) => return Ok(Err(why)),
        Err(Unread::Folder) => {
            let file = bench.resolved(path).unwrap_or_default();
            return failed(&format!("Failed to run command: cat {file}"));
        }
        Err(Unread::Unusable(why)) => return failed(&why),
    };
    let range = match rewrite::Range::of(start, end) {
        Ok(range) => range,
        Err(why) => return failed(why),
    };
    let current = range.replaced(&original, code);
    if let Err(why) = bench.write(path, current.clone()).await? {
        return failed(&why);
    }
    let lines = match range {
        rewrite::Range::Whole => None,
        rewrite::Range::Lines { start, end } => Some((start, end)),
    };
    let file = bench.resolved(path).unwrap_or_default();
    bench.memory.breakpoints.shift(&file, lines, rewrite::lines_of(code));
    if let Some(debugger) = &mut bench.memory.debugger {
        debugger.stale = true;
    }
    let text = rewrite::done(path, &diff::unified(&original, &current));
    if !bench.switches.eval_after_rewrite {
        return Ok(Ok(text.into()));
    }
    let evaluated = evaluate(bench).await?;
    Ok(Ok(Answer {
        text: format!("{text}\n{}", evaluated.text),
        solved: evaluated.solved,
    }))
}

async fn pdb(bench: &mut Bench<'_, '_>, arguments: &Arguments<'_>) -> Done<String> {
    let command = given!(arguments.required("command"));
    let (runner, file) = (given!(arguments.text("runner")), given!(arguments.text("file")));
    debugger::call(bench, command, runner, file).await.map(Ok)
}

async fn grep(bench: &mut Bench<'_, '_>, arguments: &Arguments<'_>) -> Done<String> {
    let pattern = given!(arguments.required("pattern"));
    let path = given!(arguments.text("path")).filter(|path| !path.is_empty());
    // Optional in the schema; the original failed without it.
    let most = given!(arguments.number("max_results")).unwrap_or(grep::MATCHES);
    let is_regex = given!(arguments.flag("regex")).unwrap_or(true);
    let minds_case = given!(arguments.flag("case_sensitive")).unwrap_or(true);
    let numbered = given!(arguments.flag("line_numbers")).unwrap_or(true);
    if pattern.is_empty() {
        return Ok(Ok("Pattern cannot be empty.".to_owned()));
    }
    if most < 1 {
        return Ok(Ok(format!("max_results must be 1 or greater, got {most}.")));
    }
    let lines = most.to_string();
    let mut words = vec![pattern, path.unwrap_or("."), &lines];
    words.push(if is_regex { "-E" } else { "-F" });
    if !minds_case {
        words.push("-i");
    }
    let ran = bench.run(grep::SCRIPT, &words, None, OUTPUT).await?;
    Ok(Ok(match ran.timed_out {
        true => grep::failed(&bench.timed_out()),
        false => grep::shown(&ran.output, pattern, path, most, numbered),
    }))
}

async fn bash(bench: &mut Bench<'_, '_>, arguments: &Arguments<'_>) -> Done<String> {
    let command = given!(arguments.required("command"));
    let ran = bench.run(command, &[], None, OUTPUT).await?;
    let output = match ran.timed_out {
        true => bench.timed_out(),
        false => ran.output.trim_matches(['\r', '\n']).to_owned(),
    };
    Ok(Ok(match ran.exit_code {
        Some(0) if output.trim().is_empty() => "Command executed successfully (no output)".to_owned(),
        Some(0) => output,
        _ => format!("Command failed with output:\n{output}"),
    }))
}
