use super::command;

#[test]
fn commands_that_ask_an_index_are_found_wherever_the_script_has_them() {
    for (script, found) in [
        ("pip install -e .", Some("pip install -e .")),
        ("python -m pip install -e .", Some("python -m pip install -e .")),
        ("python3.9 -m pip install numpy", Some("python3.9 -m pip install numpy")),
        (
            "/opt/venv/bin/pip3 install -q numpy",
            Some("/opt/venv/bin/pip3 install -q numpy"),
        ),
        ("pip --quiet install numpy", Some("pip --quiet install numpy")),
        (
            "cd /testbed && pip install -e .[test]; pytest",
            Some("pip install -e .[test]"),
        ),
        ("PIP_NO_CACHE=1 sudo pip3.11 install x", Some("pip3.11 install x")),
        ("pip install \\\n  numpy", Some("pip install numpy")),
        ("if pip install x; then echo; fi", Some("pip install x")),
        ("pip install --no-deps -e .", Some("pip install --no-deps -e .")),
        (
            "pip install --no-deps --no-build-isolation numpy",
            Some("pip install --no-deps --no-build-isolation numpy"),
        ),
        (
            "pip install --no-deps --no-build-isolation -r x.txt",
            Some("pip install --no-deps --no-build-isolation -r x.txt"),
        ),
        ("pip download x", Some("pip download x")),
        ("uv pip install x", Some("uv pip install x")),
        ("uv sync --frozen", Some("uv sync --frozen")),
        ("conda install -y x", Some("conda install -y x")),
        ("mamba env update -f e.yml", Some("mamba env update -f e.yml")),
        ("apt-get -y install gcc", Some("apt-get -y install gcc")),
        ("apt update", Some("apt update")),
        ("npm ci", Some("npm ci")),
        ("yarn", Some("yarn")),
        ("pnpm i", Some("pnpm i")),
        ("cargo fetch", Some("cargo fetch")),
        ("go mod download", Some("go mod download")),
        ("gem install x", Some("gem install x")),
        ("bundle install", Some("bundle install")),
        ("composer install", Some("composer install")),
        ("echo \"$(pip install x)\"", Some("pip install x")),
        ("bash -lc 'pip install x'", Some("bash -lc pip install x")),
        ("echo $((1<<2))\npip install x", Some("pip install x")),
    ] {
        assert_eq!(command(script).as_deref(), found, "{script}");
    }
}

#[test]
fn what_needs_no_index_is_not_named() {
    for script in [
        "",
        "pytest -rA tests/test_install.py",
        "pip install --no-index -e .",
        "pip install --no-deps --no-build-isolation -e .",
        "python -m pip install --no-build-isolation --no-deps -e /testbed",
        "uv pip install --offline x",
        "pip list",
        "python -m pytest",
        "python setup.py develop",
        "# pip install x",
        "echo pip install x",
        "conda activate testbed",
        "conda install --offline x",
        "npm test",
        "yarn test",
        "cargo test --offline",
        "go test ./...",
        "uv run pytest",
        "git apply -v - <<'EOF_1'\n+pip install x\n+\npip install y\nEOF_1\npytest",
        "cat <<-EOF > f\n\tpip install x\n\tEOF\npytest",
    ] {
        assert_eq!(command(script), None, "{script}");
    }
}

#[test]
fn the_first_command_is_told_and_a_long_one_is_cut() {
    let script = "git checkout x\ngit apply - <<'E'\npip install a\nE\npip install b\nnpm ci";
    assert_eq!(command(script).as_deref(), Some("pip install b"));
    let long = format!("pip install {}", "x".repeat(100));
    assert_eq!(command(&long).unwrap().chars().count(), 60);
    assert_eq!(command("cat <<< x\npip install a").as_deref(), Some("pip install a"));
}
