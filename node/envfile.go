package node

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
)

// maxEnvFile is the longest file of settings, in bytes.
const maxEnvFile = 1 << 20

// readEnvFile reads settings from a file, by their variables. A line is empty, a comment that
// begins with #, or NAME=VALUE. White space around the value does not count, and neither does one
// pair of quotes around it. Nothing in the value is replaced. compose's env_file reads such lines in
// the same way. An empty path means no file.
func readEnvFile(path string) (map[string]Chosen, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err == nil && len(text) > maxEnvFile {
		err = fmt.Errorf("%s is longer than %d bytes", path, maxEnvFile)
	}
	if err != nil {
		return nil, fmt.Errorf("--%s (MLSD_ENV_FILE): %w", envFileFlag, err)
	}
	all := map[string]Chosen{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxEnvFile)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		at := fmt.Sprintf("%s line %d", path, n)
		name, value, found := strings.Cut(line, "=")
		name = strings.TrimSpace(name)
		switch {
		case !found || strings.ContainsAny(name, " \t"):
			return nil, fmt.Errorf("%s: want NAME=VALUE, such as MLSD_LISTEN=127.0.0.1:8080", at)
		case name == variableOf(envFileFlag) || !known(name):
			return nil, fmt.Errorf("%s: %s is not a setting that a file can have: mlsd --help lists them", at, name)
		case all[name].File != "":
			return nil, fmt.Errorf("%s: %s stands in %s already", at, name, all[name].File)
		}
		all[name] = Chosen{Variable: name, Value: unquote(strings.TrimSpace(value)), File: at}
	}
	return all, lines.Err()
}

// known reports whether a variable is a setting.
func known(name string) bool {
	return slices.ContainsFunc(settings, func(s setting) bool { return s.env == name })
}

// unquote takes one pair of quotes away.
func unquote(value string) string {
	if n := len(value); n >= 2 && value[0] == value[n-1] && (value[0] == '"' || value[0] == '\'') {
		return value[1 : n-1]
	}
	return value
}
