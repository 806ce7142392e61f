use super::*;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

fn template(spec: &str) -> Template {
    Template {
        pool: "p".into(),
        pool_uid: "u".into(),
        namespace: "n".into(),
        sandboxd_image: "sandboxd:1".into(),
        public_key: "key".into(),
        spec: serde_yaml_ng::from_str(spec).unwrap(),
        term: 3,
    }
}

fn in_slot(slot: u32) -> Placement {
    Placement {
        slot: Some(slot),
        ..Placement::default()
    }
}

#[test]
fn a_pod_tells_which_gateway_made_it_and_from_what() {
    let template = template("{max: 4, maxPerNode: 2}");
    let pod = sandbox(&template, "s", "task:1", &in_slot(1)).unwrap();
    assert_eq!(term(&pod), Some(3));
    let later = Template {
        term: 4,
        ..template.clone()
    };
    let same = template_digest(&later).unwrap();
    assert_eq!(image_if_made_from(&pod, &same), Some("task:1"));
    let changed = Template {
        sandboxd_image: "sandboxd:2".into(),
        ..template
    };
    assert_eq!(image_if_made_from(&pod, &template_digest(&changed).unwrap()), None);
}

#[test]
fn a_sandbox_holds_no_token_no_secret_and_no_more_rights_than_it_needs() {
    let pod = sandbox(&template("max: 4"), "p-sbx-1", "task:1", &Placement::default()).unwrap();
    let spec = pod.spec.unwrap();
    assert_eq!(spec.automount_service_account_token, Some(false));
    assert_eq!(spec.host_users, Some(false));
    assert!(
        spec.volumes
            .unwrap()
            .iter()
            .all(|v| v.secret.is_none() && v.projected.is_none() && v.host_path.is_none())
    );
    let context = spec.containers[0].security_context.clone().unwrap();
    assert_eq!(context.allow_privilege_escalation, Some(false));
    assert_eq!(context.privileged, None);
}

#[test]
fn the_agent_image_is_a_read_only_volume_of_every_pod_and_pods_without_it_are_not_taken_over() {
    let (without, with) = (template("max: 4"), template("{max: 4, agentImage: 'agent:1'}"));
    assert_ne!(template_digest(&without).unwrap(), template_digest(&with).unwrap());
    let volumes = |pod: Pod| {
        let spec = pod.spec.unwrap();
        let images = spec.volumes.unwrap().into_iter().map(|volume| volume.image.unwrap());
        let images: Vec<_> = images
            .map(|image| (image.reference.unwrap(), image.pull_policy.unwrap()))
            .collect();
        let mounts = spec.containers[0].volume_mounts.clone().unwrap();
        let mounts = mounts
            .into_iter()
            .map(|mount| (mount.mount_path, mount.read_only == Some(true)));
        (images, mounts.collect::<Vec<_>>())
    };
    let expected = (
        ["sandboxd:1", "agent:1"]
            .map(|image| (image.to_owned(), "IfNotPresent".to_owned()))
            .to_vec(),
        ["/grpo", "/opt/agent"].map(|path| (path.to_owned(), true)).to_vec(),
    );
    assert_eq!(
        volumes(sandbox(&with, "s", "task:1", &Placement::default()).unwrap()),
        expected
    );
    assert_eq!(
        volumes(prefetch(&with, "task:1").unwrap()),
        expected,
        "a node has it before its first sandbox"
    );
    let (images, _) = volumes(sandbox(&without, "s", "task:1", &Placement::default()).unwrap());
    assert_eq!(images.len(), 1);
}

#[test]
fn every_sandbox_is_bounded() {
    let pod = sandbox(&template("max: 4"), "s", "task:1", &Placement::default()).unwrap();
    let limits = pod.spec.unwrap().containers[0].resources.clone().unwrap().limits;
    let names: Vec<String> = limits.unwrap().into_keys().collect();
    assert_eq!(names, ["cpu", "ephemeral-storage", "memory"]);
}

#[test]
fn memory_is_reserved_in_full() {
    let pod = sandbox(
        &template("{max: 4, resources: {limits: {memory: 8Gi, cpu: '4'}}}"),
        "s",
        "task:1",
        &Placement::default(),
    )
    .unwrap();
    let resources = pod.spec.unwrap().containers[0].resources.clone().unwrap();
    assert_eq!(resources.requests.unwrap()["memory"], Quantity("8Gi".into()));
}

#[test]
fn the_pools_pod_template_says_how_sandboxes_are_scheduled() {
    let overlay =
        "{max: 4, podTemplate: {spec: {priorityClassName: low, schedulerName: packer, runtimeClassName: gvisor}}}";
    let spec = sandbox(&template(overlay), "s", "task:1", &Placement::default())
        .unwrap()
        .spec
        .unwrap();
    assert_eq!(spec.priority_class_name.as_deref(), Some("low"));
    assert_eq!(spec.scheduler_name.as_deref(), Some("packer"));
    assert_eq!(spec.runtime_class_name.as_deref(), Some("gvisor"));
    assert_eq!(spec.affinity, None);
}

#[test]
fn only_a_pool_that_resets_has_containers_that_restart_and_only_when_sandboxd_says_so() {
    let container = |spec: &str| {
        let pod = sandbox(&template(spec), "s", "task:1", &Placement::default()).unwrap();
        pod.spec.unwrap().containers[0].clone()
    };
    assert_eq!(container("max: 4").restart_policy_rules, None);
    let resets = container("{max: 4, reset: ContainerRestart}");
    assert_eq!(resets.restart_policy.as_deref(), Some("Never"));
    let rules = resets.restart_policy_rules.unwrap();
    assert_eq!(rules[0].exit_codes.clone().unwrap().values, Some(vec![75]));
    assert_eq!(rules.len(), 1);
}

#[test]
fn a_sandbox_with_a_slot_keeps_away_from_nodes_where_that_is_taken() {
    let pod = sandbox(&template("{max: 4, maxPerNode: 2}"), "s", "task:1", &in_slot(1)).unwrap();
    assert_eq!(slot(&pod), Some(1));
    let labels = pod.metadata.labels.unwrap();
    let anti = pod.spec.unwrap().affinity.unwrap().pod_anti_affinity.unwrap();
    let term = &anti.required_during_scheduling_ignored_during_execution.unwrap()[0];
    assert_eq!(term.topology_key, "kubernetes.io/hostname");
    let wanted = term.label_selector.clone().unwrap().match_labels.unwrap();
    assert_eq!(wanted.len(), 2);
    assert!(wanted.iter().all(|(key, value)| labels.get(key) == Some(value)));
}

#[test]
fn a_prefetch_pod_has_the_image_and_nothing_of_a_sandbox_and_is_made_once_for_an_image_and_a_template() {
    let template = template("{max: 4, resources: {limits: {memory: 8Gi}}, imageRewrites: [{from: task, to: m/task}]}");
    let pod = prefetch(&template, "task:1").unwrap();
    let name = |template: &Template, image: &str| prefetch(template, image).unwrap().metadata.name.unwrap();
    let own = name(&template, "task:1");
    assert!(own.starts_with("p-img-") && own != name(&template, "task:2"), "{own}");
    let later = Template {
        term: 9,
        ..template.clone()
    };
    assert_eq!(name(&later, "task:1"), own, "another gateway makes no second one");
    let changed = Template {
        sandboxd_image: "sandboxd:2".into(),
        ..template.clone()
    };
    assert_ne!(name(&changed, "task:1"), own);
    let made_from = template_digest(&template).unwrap();
    assert_eq!(image_if_made_from(&pod, &made_from), Some("task:1"));
    assert_eq!(pod.metadata.labels.as_ref().unwrap()["grpo.dev/role"], "image");
    let spec = pod.spec.unwrap();
    assert_eq!(spec.host_users, Some(false));
    let container = &spec.containers[0];
    assert_eq!(container.image.as_deref(), Some("m/task:1"));
    assert_eq!(container.command.as_deref().unwrap(), ["/grpo/sandboxd", "hold"]);
    assert_eq!((container.env.as_ref(), container.ports.as_ref()), (None, None));
    let memory = &container.resources.as_ref().unwrap().limits.as_ref().unwrap()["memory"];
    assert_eq!(memory.0, "32Mi");
}

#[test]
fn a_sandbox_would_rather_run_where_its_image_is_and_still_keeps_its_slot() {
    let pod = sandbox(
        &template("{max: 4, maxPerNode: 2}"),
        "s",
        "task:1",
        &Placement {
            near: Some("node-1".into()),
            ..in_slot(1)
        },
    )
    .unwrap();
    let affinity = pod.spec.unwrap().affinity.unwrap();
    assert!(affinity.pod_anti_affinity.is_some());
    let preferred = affinity.node_affinity.unwrap();
    assert_eq!(preferred.required_during_scheduling_ignored_during_execution, None);
    let preferred = preferred.preferred_during_scheduling_ignored_during_execution.unwrap();
    let field = &preferred[0].preference.match_fields.as_ref().unwrap()[0];
    assert_eq!(field.values.as_deref().unwrap(), ["node-1"]);
}

#[test]
fn the_first_rewrite_that_fits_wins() {
    let spec = template("{max: 4, imageRewrites: [{from: docker.io/a/, to: x/}, {from: docker.io/, to: m/}]}").spec;
    let rewritten = |image| rewritten(&spec.image_rewrites, image);
    assert_eq!(rewritten("a/b:1"), "x/b:1");
    assert_eq!(rewritten("docker.io/c/d:1"), "m/c/d:1");
    assert_eq!(rewritten("ghcr.io/c:1"), "ghcr.io/c:1");
}

#[test]
fn no_overlay_gives_agents_the_label_of_graders() {
    let overlay = "{max: 4, podTemplate: {metadata: {labels: {grpo.dev/grader: 'true', team: a}}}}";
    let pod = sandbox(&template(overlay), "s", "task:1", &Placement::default()).unwrap();
    assert!(!is_graders(&pod));
    assert_eq!(pod.metadata.labels.unwrap()["team"], "a");
}

#[test]
fn the_package_indexs_addresses_are_in_the_hosts_file_and_another_index_needs_other_pods() {
    let spec = |url: &str| {
        template(&format!(
            "{{max: 4, packageIndex: {{url: '{url}', cidr: 10.0.0.0/16}}}}"
        ))
    };
    let alias = HostAlias {
        ip: "10.0.0.1".into(),
        hostnames: Some(vec!["pypi".into()]),
    };
    let placement = Placement {
        aliases: vec![alias.clone()],
        ..Placement::default()
    };
    let pod = sandbox(&spec("http://pypi/simple"), "s", "task:1", &placement).unwrap();
    let same = template_digest(&spec("http://pypi/simple")).unwrap();
    assert_eq!(
        image_if_made_from(&pod, &same),
        Some("task:1"),
        "with other addresses too"
    );
    let other = template_digest(&spec("http://other/simple")).unwrap();
    assert_eq!(image_if_made_from(&pod, &other), None);
    assert_eq!(pod.spec.unwrap().host_aliases.unwrap(), [alias]);
}
