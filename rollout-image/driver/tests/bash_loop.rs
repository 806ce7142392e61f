//! The bash loop in whole runs: limits that end an episode, presets, the edit tool, and reasoning switched off.

use crate::world::{self, World};
use grpo_driver::agent::AgentKind;
use grpo_driver::agent::commands::CommandSurroundings;
use grpo_driver::config::Settings;
use grpo_records::{Batch, EpisodeEnd, EpisodeRecord, Outcome, paths};
use serde_json::{Value, json};

/// A run of one iteration only.
fn short(world: &World) -> Settings {
    let mut settings = world.settings();
    settings.iterations = 1;
    settings.evaluate.clear();
    settings
}

#[tokio::test]
async fn an_answer_is_cut_at_the_episodes_last_token_and_the_patch_is_graded() {
    let world = World::new(1).await;
    *world.engine.policy.lock().unwrap() = Box::new(|prompt, _| match prompt.matches("assistant\n").count() {
        1 => "```bash\nsed -i 's/a - b/a + b/' $F\n```".into(),
        _ => "Hm. ".repeat(400),
    });
    let mut settings = short(&world);
    settings.agent.limits.episode_tokens = Some(150);
    world.go(settings, 1).await.unwrap();
    world.verified().await;
    let store = world.store();
    for meta in world.metas().await {
        assert_eq!(
            (&meta.outcome, meta.end, meta.turns, meta.truncated),
            (&Outcome::Resolved, EpisodeEnd::TokenLimit, 2, true)
        );
        let folder = meta.key.dir(meta.attempt);
        let rows = grpo_records::rows::decode(&store.bytes(&paths::rows(&folder)).await.unwrap()).unwrap();
        let first_prompt = rows[0].mask.iter().take_while(|mask| **mask == 0).count();
        assert_eq!(rows[0].tokens.len() - first_prompt, 150);
    }
    let batch: Batch = store.read(&paths::batch(1)).await.unwrap();
    assert!(batch.rows.iter().all(|row| row.truncated));
}

#[tokio::test]
async fn an_observation_that_leaves_no_token_for_an_answer_ends_the_episode() {
    let world = World::new(1).await;
    *world.engine.policy.lock().unwrap() = Box::new(|_, _| "```bash\nseq 1 60\n```".into());
    let mut settings = short(&world);
    settings.agent.limits.episode_tokens = Some(100);
    world.go(settings, 1).await.unwrap();
    world.verified().await;
    for meta in world.metas().await {
        assert_eq!((meta.end, meta.turns), (EpisodeEnd::TokenLimit, 1));
    }
}

#[tokio::test]
async fn a_policy_edits_with_the_tool_and_submits_as_mini_swe_agent_plus_does() {
    let world = World::new(1).await;
    let programs = world.mount.path().join("programs");
    std::fs::create_dir(&programs).unwrap();
    // Simulates the real one, which is in another image: `FILE -- OLD NEW`.
    let tool = "#!/bin/sh\nsed -i \"s/$3/$4/\" \"$1\"; echo \"The file $1 has been edited successfully.\"\n";
    std::fs::write(programs.join("edit_via_str_replace"), tool).unwrap();
    std::fs::set_permissions(
        programs.join("edit_via_str_replace"),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    world.gateway.state.lock().unwrap().programs = Some(programs);
    *world.engine.policy.lock().unwrap() = Box::new(|prompt, _| match prompt.matches("assistant\n").count() {
        1 => "```bash\npython edit_via_str_replace $F -- 'a - b' 'a + b' && echo \"$PAGER $PATH\"\n```".into(),
        _ => "```bash\necho MINI_SWE_AGENT_FINAL_OUTPUT && git add -A && git diff --cached\n```".into(),
    });
    let mut settings = short(&world);
    let agent: grpo_crds::agent::Agent =
        serde_json::from_value(json!({"bash": {"preset": "MiniSweAgentPlus"}})).unwrap();
    settings.agent.kind = AgentKind::of(&agent).unwrap();
    settings.agent.commands = CommandSurroundings::of(&agent, settings.agent.kind.has_edit_tool());
    settings.agent.limits.context_tokens = 8192;
    world.go(settings, 1).await.unwrap();
    world.verified().await;
    let store = world.store();
    for meta in world.metas().await {
        assert_eq!(
            (&meta.outcome, meta.end, meta.turns),
            (&Outcome::Resolved, EpisodeEnd::Submitted, 2)
        );
        let record: EpisodeRecord = store.read(&paths::trajectory(&meta.key.dir(1))).await.unwrap();
        let seen = &record.turns[0].observation_text;
        assert!(
            seen.starts_with("<returncode>0</returncode>\n<output>\nThe file a.py has been edited successfully.\ncat ")
        );
        assert!(seen.ends_with(":/grpo/bin\n</output>"), "{seen}");
    }
}

/// As in Qwen3's template.
const SWITCH: &str =
    "{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}";

#[tokio::test]
async fn reasoning_is_switched_off_in_the_prompt_of_every_turn() {
    let world = World::new(1).await;
    let model = world.mount.path().join("model");
    std::fs::create_dir(&model).unwrap();
    for file in std::fs::read_dir(world::model())
        .unwrap()
        .map(|file| file.unwrap().path())
    {
        let to = model.join(file.file_name().unwrap());
        if file.ends_with("tokenizer_config.json") {
            let mut config: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
            let template = config["chat_template"].as_str().unwrap();
            config["chat_template"] = json!(format!("{template}{SWITCH}"));
            std::fs::write(to, config.to_string()).unwrap();
        } else {
            std::os::unix::fs::symlink(file, to).unwrap();
        }
    }
    *world.engine.policy.lock().unwrap() = Box::new(|prompt, seed| {
        assert!(prompt.ends_with("assistant\n<think>\n\n</think>\n\n"), "{prompt}");
        world::half_right(prompt, seed)
    });
    let mut settings = short(&world);
    (settings.model, settings.agent.thinking) = (model, false);
    world.go(settings, 1).await.unwrap();
    world.verified().await;
    let metas = world.metas().await;
    assert!(
        metas.iter().all(|meta| meta.outcome.is_verdict() && meta.turns == 3),
        "{metas:?}"
    );
}

#[tokio::test]
async fn a_model_whose_template_cannot_switch_reasoning_off_ends_the_run_when_it_begins() {
    let world = World::new(1).await;
    let mut settings = short(&world);
    settings.agent.thinking = false;
    let fault = world.start(settings, 1).await.err().unwrap().to_string();
    assert!(
        fault.contains("agent.context.thinking is Off, but the model's chat template renders the same prompt"),
        "{fault}"
    );
}
