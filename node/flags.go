package node

import (
	"strings"

	"github.com/urfave/cli/v3"
)

// Flags that are named elsewhere.
const (
	envFileFlag     = "env-file"
	listenFlag      = "listen"
	adminListenFlag = "admin-listen"
)

// variableOf returns the variable of a flag.
func variableOf(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// fromEnv is one environment variable as the source of a flag.
type fromEnv struct {
	env  map[string]string
	name string
}

// Lookup implements cli.ValueSource.
func (v fromEnv) Lookup() (string, bool) {
	value, set := v.env[v.name]
	return value, set
}

// String implements fmt.Stringer.
func (v fromEnv) String() string { return v.name }

// GoString implements fmt.GoStringer.
func (v fromEnv) GoString() string { return v.name }

// switchFlag is a flag that can stand without a value: --failpoints is --failpoints=true. Its value
// is a text, so that a bad value is refused like a bad value of any other setting.
type switchFlag = cli.FlagBase[string, cli.NoConfig, switchValue]

// switchValue is the value of a switchFlag.
type switchValue struct{ text *string }

// Create implements cli.ValueCreator.
func (switchValue) Create(value string, p *string, _ cli.NoConfig) cli.Value {
	*p = value
	return &switchValue{p}
}

// ToString implements cli.ValueCreator.
func (switchValue) ToString(value string) string { return value }

// Set implements cli.Value.
func (v *switchValue) Set(text string) error {
	*v.text = text
	return nil
}

// Get implements cli.Value.
func (v *switchValue) Get() any { return *v.text }

// String implements fmt.Stringer.
func (v *switchValue) String() string { return *v.text }

// IsBoolFlag says that the flag needs no value.
func (*switchValue) IsBoolFlag() bool { return true }
