use super::*;

fn manifest(lineage: &str, step: u32, files: &[&str]) -> WeightsManifest {
    let file = |name: &&str| WeightsFile {
        name: (*name).to_owned(),
        bytes: 4,
        sha256: "00".into(),
    };
    WeightsManifest {
        version: paths::weights_version(lineage, step),
        lineage: lineage.into(),
        step,
        parent: None,
        files: files.iter().map(file).collect(),
        deltas: Vec::new(),
        chat_templates: Vec::new(),
        tensors_sha256: "00".into(),
        canary: None,
    }
}

#[test]
fn a_whole_file_is_kept_and_a_part_is_continued() {
    let wanted = Wanted {
        path: "tasks/train.json".into(),
        bytes: 10,
        sha256: None,
    };
    for (here, part, step_wanted) in [
        (None, None, Step::Fetch { from: 0 }),
        (Some(10), None, Step::Keep),
        (Some(10), Some(3), Step::Keep),
        (None, Some(3), Step::Fetch { from: 3 }),
        (None, Some(10), Step::Fetch { from: 10 }),
        (None, Some(11), Step::Fetch { from: 0 }),
        (Some(7), None, Step::Fetch { from: 0 }),
    ] {
        assert_eq!(step(&wanted, here, part), step_wanted, "{here:?} {part:?}");
    }
}

#[test]
fn the_newest_version_is_that_of_the_newest_lineage() {
    let manifests = [manifest("l1", 9, &[]), manifest("l10", 2, &[]), manifest("l2", 4, &[])];
    assert_eq!(chosen("demo", &manifests, "latest").unwrap().version, "l10-v2");
    assert_eq!(chosen("demo", &manifests, "l2-v4").unwrap().version, "l2-v4");
    let error = chosen("demo", &manifests, "l3-v1").unwrap_err().to_string();
    assert!(
        error.contains("l3-v1") && error.contains("l1-v9, l2-v4, l10-v2"),
        "{error}"
    );
    let error = chosen("demo", &[], "latest").unwrap_err().to_string();
    assert!(error.contains("GrpoRun demo"), "{error}");
}

#[test]
fn a_format_that_a_version_does_not_have_is_refused_with_the_one_it_has() {
    use WeightsFormat::{Adapter, Hf, Merged};
    let adapter = manifest("l1", 1, &["adapter_model.safetensors", "adapter_config.json"]);
    let model = manifest("l1", 1, &["model.safetensors", "config.json"]);
    for (version, format, has_base, wanted) in [
        (&adapter, None, false, Ok(true)),
        (&adapter, Some(Adapter), false, Ok(true)),
        (&adapter, Some(Hf), false, Err("give --format adapter")),
        (&adapter, Some(Merged), false, Err("give --base DIR")),
        (&adapter, Some(Merged), true, Ok(true)),
        (&model, None, false, Ok(false)),
        (&model, Some(Hf), false, Ok(false)),
        (&model, Some(Adapter), false, Err("give --format hf")),
        (&model, Some(Merged), true, Err("needs no merging")),
    ] {
        match (is_adapter(version, format, has_base), wanted) {
            (Ok(is), Ok(wanted)) => assert_eq!(is, wanted),
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            (found, wanted) => panic!("{format:?}: {found:?}, not {wanted:?}"),
        }
    }
}

#[test]
fn a_versions_manifest_comes_last_and_names_of_files_never_climb() {
    let found = files(&manifest("l1", 1, &["model.safetensors"]), 7).unwrap();
    let found: Vec<_> = found.iter().map(|file| (file.path.as_str(), file.bytes)).collect();
    assert_eq!(
        found,
        [
            ("weights/l1-v1/model.safetensors", 4),
            ("weights/l1-v1/manifest.json", 7)
        ]
    );
    let error = files(&manifest("l1", 1, &["../x"]), 7).unwrap_err().to_string();
    assert!(error.contains("../x"), "{error}");
    for name in ["../x.jinja", "more/x.jinja", ".."] {
        let mut manifest = manifest("l1", 1, &["model.safetensors"]);
        manifest.chat_templates = vec![WeightsFile {
            name: name.into(),
            ..manifest.files[0].clone()
        }];
        let error = files(&manifest, 7).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
}

#[test]
fn chat_templates_with_names_come_into_their_own_folder() {
    let mut manifest = manifest("l1", 1, &["model.safetensors"]);
    manifest.chat_templates = vec![WeightsFile {
        name: "tool_use.jinja".into(),
        bytes: 5,
        sha256: "11".into(),
    }];
    let found = files(&manifest, 7).unwrap();
    let paths: Vec<&str> = found.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "weights/l1-v1/model.safetensors",
            "weights/l1-v1/additional_chat_templates/tool_use.jinja",
            "weights/l1-v1/manifest.json"
        ]
    );
    assert_eq!((found[1].bytes, found[1].sha256.as_deref()), (5, Some("11")));
}

#[test]
fn episodes_come_with_the_journal_so_that_the_copy_can_be_read() {
    let of = |episodes, metrics, rows| {
        Kinds {
            episodes,
            metrics,
            rows,
        }
        .folders()
    };
    assert_eq!(
        of(true, false, false),
        [
            "journal",
            "batches",
            "conversations",
            "rollouts",
            "evaluations",
            "tokens"
        ]
    );
    assert_eq!(
        of(false, true, true),
        [
            "metrics",
            "tensorboard",
            "wandb",
            "tasks",
            "datasets",
            "models",
            "validation"
        ]
    );
}
