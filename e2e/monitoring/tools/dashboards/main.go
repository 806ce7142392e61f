// Reads Grafana dashboards by Grafana's own schema: an unknown or wrong field is an error.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

func check(path string) (int, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	var read dashboard.Dashboard
	// The SDK returns an empty list of errors as an error.
	if err := read.UnmarshalJSONStrict(raw); err != nil && err.Error() != "" {
		return 0, err
	}
	if err := read.Validate(); err != nil && err.Error() != "" {
		return 0, err
	}
	var whole struct{ Panels []json.RawMessage }
	if err := json.Unmarshal(raw, &whole); err != nil {
		return 0, err
	}
	return len(whole.Panels), nil
}

func main() {
	plugins.RegisterDefaultPlugins()
	failed := false
	for _, path := range os.Args[1:] {
		panels, err := check(path)
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s is no dashboard of Grafana: %v\n", path, err)
			failed = true
			continue
		}
		fmt.Printf("%s: %d rows and panels follow Grafana's schema\n", path, panels)
	}
	if failed || len(os.Args) < 2 {
		os.Exit(1)
	}
}
