// Command indigo makes calls with the functions that indigo's lexgen generated: indigo BASE FILE.
// It validates the answers with the lexicons, which generated Go code does not do.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/bluesky-social/indigo/atproto/atdata"
	"github.com/bluesky-social/indigo/atproto/lexicon"

	"mlsd/clientsim/generators/testdata/indigo/bluecatbird"
	. "mlsd/clientsim/steps"
	"mlsd/internal/errs"
	"mlsd/lexicons"
)

type call struct {
	NSID, Kind, Token, Event string
	Params                   map[string]any
	Body                     json.RawMessage
}

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(base, file string) (err error) {
	defer Catch(&err)
	var calls []call
	Check(json.Unmarshal(Must(os.ReadFile(file)), &calls))
	catalog := load()
	for _, c := range calls {
		outcome := map[string]string{"nsid": c.NSID}
		if err := Attempt(func() { makeCall(catalog, base, c) }); err != nil {
			outcome["error"] = err.Error()
		}
		Check(json.NewEncoder(os.Stdout).Encode(outcome))
	}
	return nil
}

// load reads the lexicons. References within a lexicon get its name, so that they mean the same
// elsewhere.
func load() *lexicon.BaseCatalog {
	catalog := lexicon.NewBaseCatalog()
	for _, name := range Must(fs.Glob(lexicons.Files, lexicons.Pattern)) {
		data := Must(lexicons.Files.ReadFile(name))
		nsid := strings.ReplaceAll(strings.TrimSuffix(name, ".json"), "/", ".")
		data = bytes.ReplaceAll(data, []byte(`"#`), []byte(`"`+nsid+`#`))
		var file lexicon.SchemaFile
		Check(errs.Wrap(json.Unmarshal(data, &file), "%s", name))
		Check(errs.Wrap(catalog.AddSchemaFile(file), "%s", name))
	}
	return catalog
}

// makeCall makes one call, or decodes one event, and validates what came.
func makeCall(catalog *lexicon.BaseCatalog, base string, c call) {
	if c.Kind == "event" {
		name := c.NSID + "#" + c.Event
		event, ok := bluecatbird.Events[name]
		if !ok {
			Fail("no event %s", name)
		}
		Check(json.Unmarshal(c.Body, event()))
		validate(Must(catalog.Resolve(name)).Def, c.Body)
		return
	}
	function := reflect.ValueOf(bluecatbird.Functions[c.NSID])
	if !function.IsValid() {
		Fail("no function")
	}
	client := &client{base: base, token: c.Token}
	schema := Must(catalog.Resolve(c.NSID))
	in := append([]reflect.Value{reflect.ValueOf(context.Background()), reflect.ValueOf(client)},
		arguments(schema, function.Type(), c)...)
	out := function.Call(in)
	failed, _ := out[len(out)-1].Interface().(error)
	Check(failed)
	var output *lexicon.SchemaBody
	switch def := schema.Def.(type) {
	case lexicon.SchemaQuery:
		output = def.Output
	case lexicon.SchemaProcedure:
		output = def.Output
	}
	if output != nil && output.Schema != nil {
		validate(output.Schema.Inner, client.answer)
	}
}

// arguments are what the function takes besides context and client: the parameters in the order of
// their names, or the input.
func arguments(schema *lexicon.Schema, f reflect.Type, c call) (args []reflect.Value) {
	if query, ok := schema.Def.(lexicon.SchemaQuery); ok && query.Parameters != nil {
		for i, name := range slices.Sorted(maps.Keys(query.Parameters.Properties)) {
			arg := reflect.New(f.In(2 + i))
			if value, ok := c.Params[name]; ok {
				Check(errs.Wrap(json.Unmarshal(Must(json.Marshal(value)), arg.Interface()), "%s", name))
			}
			args = append(args, arg.Elem())
		}
		return args
	}
	if f.NumIn() == 2 {
		return nil
	}
	input := reflect.New(f.In(2).Elem())
	Check(json.Unmarshal(c.Body, input.Interface()))
	return []reflect.Value{input}
}

// validate validates JSON as the only field of a record, because the library validates records.
func validate(def any, body []byte) {
	const name = "com.example.wrapped"
	value := Must(atdata.UnmarshalJSON(fmt.Appendf(nil, `{"$type":%q,"it":%s}`, name, body)))
	file := lexicon.SchemaFile{Lexicon: 1, ID: name,
		Defs: map[string]lexicon.SchemaDef{"main": {Inner: lexicon.SchemaRecord{
			Type: "record", Key: "any", Record: lexicon.SchemaObject{
				Type: "object", Required: []string{"it"}, Properties: map[string]lexicon.SchemaDef{"it": {Inner: def}},
			},
		}}}}
	wrapped := load()
	Check(wrapped.AddSchemaFile(file))
	Check(lexicon.ValidateRecord(wrapped, value, name, 0))
}

// client implements the interface that generated functions call.
type client struct {
	base, token string
	answer      []byte
}

func (c *client) LexDo(ctx context.Context, method, encoding, endpoint string, params map[string]any, body,
	out any) (err error) {
	defer Catch(&err)
	query := url.Values{}
	for name, value := range params {
		if list, ok := value.([]string); ok {
			query[name] = list
		} else {
			query.Set(name, fmt.Sprint(value))
		}
	}
	var content io.Reader
	if body != nil {
		content = bytes.NewReader(Must(json.Marshal(body)))
	}
	req := Must(http.NewRequestWithContext(ctx, method, c.base+"/xrpc/"+endpoint+"?"+query.Encode(), content))
	req.Header.Set("Authorization", "Bearer "+c.token)
	if encoding != "" {
		req.Header.Set("Content-Type", encoding)
	}
	resp := Must(http.DefaultClient.Do(req))
	defer resp.Body.Close()
	c.answer = Must(io.ReadAll(resp.Body))
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(c.answer)))
	}
	return json.Unmarshal(c.answer, out)
}
