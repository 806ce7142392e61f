//! Refuses engine flags that a manifest may not give. The CRD refuses their full spellings; this module refuses the
//! other spellings that Python's parsers accept (unique prefixes, underscores).

use grpo_crds::inference_pool::{
    Engine,
    owned_flags::{OWNED_SGLANG_FLAGS, OWNED_VLLM_FLAGS},
};

/// The first item of `extraArgs` that sets one of the operator's flags, as a message.
pub fn refusal(engine: &Engine) -> Option<String> {
    let (kind, arguments, owned) = match (&engine.vllm, &engine.sglang) {
        (Some(vllm), _) => ("vllm", &vllm.extra_args, OWNED_VLLM_FLAGS),
        (None, Some(sglang)) => ("sglang", &sglang.extra_args, OWNED_SGLANG_FLAGS),
        (None, None) => return None,
    };
    arguments.iter().enumerate().find_map(|(n, argument)| {
        let (flag, instead) = owned.iter().find(|(flag, _)| stands_for(argument, flag))?;
        Some(format!(
            "spec.engine.{kind}.extraArgs[{n}]: {argument:?} stands for --{flag}, which the operator sets itself ({instead}); remove it"
        ))
    })
}

/// Whether an argument is this flag, or a prefix that a parser accepts for it.
fn stands_for(argument: &str, flag: &str) -> bool {
    let Some(name) = argument.strip_prefix("--") else {
        return false;
    };
    let name = name.split(['=', '.']).next().unwrap_or_default().replace('_', "-");
    // Shorter prefixes match more than one flag, and the parser refuses them itself.
    name.len() >= 4 && flag.starts_with(&name) || name == flag
}

#[cfg(test)]
mod tests;
