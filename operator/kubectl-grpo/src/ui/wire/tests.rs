use super::*;
use schemars::generate::SchemaSettings;
use serde_json::json;
use std::path::Path;
use ts_rs::Config;

/// Calls a macro with all views. Page and Python client have the same ones.
macro_rules! each_view {
    ($with:ident) => {
        $with!(
            RunsView,
            RunView,
            RunEnd,
            Count,
            Curve,
            IterationLine,
            EvaluationLine,
            VersionLine,
            ScopeView,
            GroupLine,
            VoidLine,
            EpisodeLine,
            GroupView,
            SampleView,
            Divergence,
            EpisodeDetail,
            Text,
            TurnView,
            MessageView,
            CallView,
            VoteView,
            RowLine,
            GradeView,
            RewardPart,
            Flag,
            FlagKind,
            ProcessView,
            TokensView,
            TrainerTokens,
            TaskView,
            TaskScope,
            Found,
            SearchView,
            LogView,
            Problem,
        );
    };
}

/// The page's types. `UPDATE_SCREENS=1` writes them.
#[test]
fn the_page_has_the_types_of_these_views() {
    let config = Config::new().with_large_int("number");
    let mut text = String::from(
        "// Made from operator/kubectl-grpo/src/ui/wire.rs by a test: UPDATE_SCREENS=1 cargo test -p kubectl-grpo --lib ui::wire\n",
    );
    macro_rules! declare {
        ($($name:ident),* $(,)?) => { $( text += &format!("\nexport {}\n", $name::decl(&config)); )* };
    }
    each_view!(declare);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../viewer/src/wire.ts");
    if std::env::var_os("UPDATE_SCREENS").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text, "{}", file.display());
}

/// The Python client's types. `UPDATE_SCREENS=1` writes them; then `operator/python/generate.py` makes its models.
#[test]
fn the_python_client_has_the_types_of_these_views() {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    macro_rules! declare {
        ($($name:ident),* $(,)?) => { $( generator.subschema_for::<$name>(); )* };
    }
    each_view!(declare);
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Views",
        "description": "Made from operator/kubectl-grpo/src/ui/wire.rs by a test: UPDATE_SCREENS=1 cargo test -p kubectl-grpo --lib ui::wire",
        "$defs": generator.take_definitions(true),
    });
    let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/schemas/views.json");
    if std::env::var_os("UPDATE_SCREENS").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text, "{}", file.display());
}
