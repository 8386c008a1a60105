// Command indigo makes calls with the functions that indigo's lexgen generated: indigo BASE FILE.
// It validates the answers with the lexicons, which generated Go code does not do.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/bluesky-social/indigo/atproto/atdata"
	"github.com/bluesky-social/indigo/atproto/lexicon"

	"mlsd/clientsim/generators/testdata/indigo/bluecatbird"
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

func run(base, file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var calls []call
	if err := json.Unmarshal(data, &calls); err != nil {
		return err
	}
	catalog, err := load()
	if err != nil {
		return err
	}
	for _, c := range calls {
		outcome := map[string]string{"nsid": c.NSID}
		if err := makeCall(catalog, base, c); err != nil {
			outcome["error"] = err.Error()
		}
		if err := json.NewEncoder(os.Stdout).Encode(outcome); err != nil {
			return err
		}
	}
	return nil
}

// load reads the lexicons. References within a lexicon get its name, so that they mean the same
// elsewhere.
func load() (*lexicon.BaseCatalog, error) {
	names, err := fs.Glob(lexicons.Files, lexicons.Pattern)
	if err != nil {
		return nil, err
	}
	catalog := lexicon.NewBaseCatalog()
	for _, name := range names {
		data, err := lexicons.Files.ReadFile(name)
		if err != nil {
			return nil, err
		}
		nsid := strings.ReplaceAll(strings.TrimSuffix(name, ".json"), "/", ".")
		data = bytes.ReplaceAll(data, []byte(`"#`), []byte(`"`+nsid+`#`))
		var file lexicon.SchemaFile
		if err := json.Unmarshal(data, &file); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if err := catalog.AddSchemaFile(file); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return catalog, nil
}

// makeCall makes one call, or decodes one event, and validates what came.
func makeCall(catalog *lexicon.BaseCatalog, base string, c call) error {
	if c.Kind == "event" {
		name := c.NSID + "#" + c.Event
		event, ok := bluecatbird.Events[name]
		if !ok {
			return errors.New("no event " + name)
		}
		if err := json.Unmarshal(c.Body, event()); err != nil {
			return err
		}
		schema, err := catalog.Resolve(name)
		if err != nil {
			return err
		}
		return validate(catalog, schema.Def, c.Body)
	}
	function := reflect.ValueOf(bluecatbird.Functions[c.NSID])
	if !function.IsValid() {
		return errors.New("no function")
	}
	client := &client{base: base, token: c.Token}
	args, err := arguments(catalog, function.Type(), c)
	if err != nil {
		return err
	}
	in := append([]reflect.Value{reflect.ValueOf(context.Background()), reflect.ValueOf(client)}, args...)
	out := function.Call(in)
	if err, _ := out[len(out)-1].Interface().(error); err != nil {
		return err
	}
	schema, err := catalog.Resolve(c.NSID)
	if err != nil {
		return err
	}
	var output *lexicon.SchemaBody
	switch def := schema.Def.(type) {
	case lexicon.SchemaQuery:
		output = def.Output
	case lexicon.SchemaProcedure:
		output = def.Output
	}
	if output == nil || output.Schema == nil {
		return nil
	}
	return validate(catalog, output.Schema.Inner, client.answer)
}

// arguments are what the function takes besides context and client: the parameters in the order of
// their names, or the input.
func arguments(catalog *lexicon.BaseCatalog, f reflect.Type, c call) ([]reflect.Value, error) {
	schema, err := catalog.Resolve(c.NSID)
	if err != nil {
		return nil, err
	}
	if query, ok := schema.Def.(lexicon.SchemaQuery); ok && query.Parameters != nil {
		var names []string
		for name := range query.Parameters.Properties {
			names = append(names, name)
		}
		slices.Sort(names)
		var args []reflect.Value
		for i, name := range names {
			arg := reflect.New(f.In(2 + i))
			if value, ok := c.Params[name]; ok {
				data, err := json.Marshal(value)
				if err != nil {
					return nil, err
				}
				if err := json.Unmarshal(data, arg.Interface()); err != nil {
					return nil, fmt.Errorf("%s: %w", name, err)
				}
			}
			args = append(args, arg.Elem())
		}
		return args, nil
	}
	if f.NumIn() == 2 {
		return nil, nil
	}
	input := reflect.New(f.In(2).Elem())
	if err := json.Unmarshal(c.Body, input.Interface()); err != nil {
		return nil, err
	}
	return []reflect.Value{input}, nil
}

// validate validates JSON as the only field of a record, because the library validates records.
func validate(catalog *lexicon.BaseCatalog, def any, body []byte) error {
	const name = "com.example.wrapped"
	value, err := atdata.UnmarshalJSON(fmt.Appendf(nil, `{"$type":%q,"it":%s}`, name, body))
	if err != nil {
		return err
	}
	file := lexicon.SchemaFile{Lexicon: 1, ID: name,
		Defs: map[string]lexicon.SchemaDef{"main": {Inner: lexicon.SchemaRecord{
			Type: "record", Key: "any", Record: lexicon.SchemaObject{
				Type: "object", Required: []string{"it"}, Properties: map[string]lexicon.SchemaDef{"it": {Inner: def}},
			},
		}}}}
	wrapped, err := load()
	if err != nil {
		return err
	}
	if err := wrapped.AddSchemaFile(file); err != nil {
		return err
	}
	return lexicon.ValidateRecord(wrapped, value, name, 0)
}

// client implements the interface that generated functions call.
type client struct {
	base, token string
	answer      []byte
}

func (c *client) LexDo(ctx context.Context, method, encoding, endpoint string, params map[string]any, body,
	out any) error {
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
		data, err := json.Marshal(body)
		if err != nil {
			return err
		}
		content = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+"/xrpc/"+endpoint+"?"+query.Encode(), content)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	if encoding != "" {
		req.Header.Set("Content-Type", encoding)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if c.answer, err = io.ReadAll(resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(c.answer)))
	}
	return json.Unmarshal(c.answer, out)
}
