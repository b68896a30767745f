package console

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write openapi.json from the table of routes")

// openapi.json has every route of the table with its parameters and documents, and nothing else.
func TestOpenAPI(t *testing.T) {
	want, err := json.MarshalIndent(describe(t), "", "  ")
	require.NoError(t, err)
	want = append(want, '\n')
	if *update {
		require.NoError(t, os.WriteFile("openapi.json", want, 0o644))
		return
	}
	require.True(t, bytes.Equal(want, openAPI), "openapi.json is not that of the routes: go test ./transport/console -run OpenAPI -update")
}

// What openapi.json promises is served, and what is served is promised: each of its operations has a handler, and each
// handler an operation.
func TestOpenAPIIsServed(t *testing.T) {
	var doc struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	require.NoError(t, json.Unmarshal(openAPI, &doc))
	promised := map[string]bool{}
	for path, methods := range doc.Paths {
		for method := range methods {
			promised[strings.ToUpper(method)+" "+path] = true
		}
	}
	for _, rt := range routes {
		require.True(t, promised[rt.method+" "+rt.path], "%s %s is not in openapi.json", rt.method, rt.path)
		delete(promised, rt.method+" "+rt.path)
	}
	require.True(t, promised["GET /v1/openapi.json"])
	delete(promised, "GET /v1/openapi.json")
	require.Empty(t, promised, "promised and not in the table")

	s, _ := testServer(t, nil)
	for path, methods := range doc.Paths {
		path = strings.NewReplacer("{broker}", "1", "{topic}", "orders", "{partition}", "0", "{group}", "billing").Replace(path)
		for method := range methods {
			r := httptest.NewRequest(strings.ToUpper(method), "http://localhost"+path, strings.NewReader("{}"))
			r.RemoteAddr = "127.0.0.1:1"
			w := httptest.NewRecorder()
			s.http.Handler.ServeHTTP(w, r)
			require.NotEqual(t, http.StatusMethodNotAllowed, w.Code, "%s %s", method, path)
			require.NotContains(t, w.Body.String(), "the admin API has no", "%s %s", method, path)
		}
	}
}

// describe makes the OpenAPI document of the routes.
func describe(t *testing.T) map[string]any {
	d := &describer{schemas: map[string]any{}}
	lines := map[string]any{"description": "Refused or failed: the three lines.", "content": content(d.schema(reflect.TypeFor[ErrorAnswer]()))}
	paths := map[string]map[string]any{
		"/v1/openapi.json": {"get": map[string]any{"summary": "This document.", "operationId": "getOpenapiJson", "responses": map[string]any{"200": map[string]any{"description": "Done."}}}},
	}
	seen := map[string]bool{}
	for _, rt := range routes {
		op := map[string]any{"summary": rt.summary, "operationId": operationID(rt.method, rt.path)}
		require.False(t, seen[operationID(rt.method, rt.path)])
		seen[operationID(rt.method, rt.path)] = true
		var params []any
		for part := range strings.SplitSeq(rt.path, "/") {
			name, isParam := strings.CutPrefix(part, "{")
			if !isParam {
				continue
			}
			name = strings.TrimSuffix(name, "}")
			meaning := map[string]string{"broker": "broker id, or self", "topic": "topic", "partition": "partition", "group": "consumer group"}[name]
			require.NotEmpty(t, meaning, name)
			params = append(params, map[string]any{"name": name, "in": "path", "required": true, "description": meaning, "schema": map[string]any{"type": "string"}})
		}
		for _, q := range rt.query {
			params = append(params, map[string]any{"name": q.name, "in": "query", "description": q.meaning, "schema": map[string]any{"type": q.kind}})
		}
		if params != nil {
			op["parameters"] = params
		}
		if rt.body != nil {
			op["requestBody"] = map[string]any{"required": true, "content": content(d.schema(reflect.TypeOf(rt.body)))}
		}
		op["responses"] = map[string]any{"200": map[string]any{"description": "Done.", "content": content(d.schema(reflect.TypeOf(rt.answer)))}, "default": lines}
		if paths[rt.path] == nil {
			paths[rt.path] = map[string]any{}
		}
		paths[rt.path][strings.ToLower(rt.method)] = op
	}
	return map[string]any{
		"openapi": "3.1.0",
		"info": map[string]any{
			"title": "millrace admin API", "version": "1",
			"description": "What the Kafka protocol cannot say of a cluster: maintenance, decommission, quorum, rebalance, diagnosis. Answers only requests of the broker's own machine. Any broker takes any order. Fields are only ever added.",
			"license":     map[string]any{"name": "Apache-2.0", "identifier": "Apache-2.0"},
		},
		"paths":      paths,
		"components": map[string]any{"schemas": d.schemas},
	}
}

func content(schema any) map[string]any {
	return map[string]any{"application/json": map[string]any{"schema": schema}}
}

// operationID makes getBrokersBrokerMaintenance of GET /v1/brokers/{broker}/maintenance.
func operationID(method, path string) string {
	id := strings.ToLower(method)
	for part := range strings.FieldsFuncSeq(strings.TrimPrefix(path, "/v1"), func(r rune) bool { return strings.ContainsRune("/{}-", r) }) {
		id += strings.ToUpper(part[:1]) + part[1:]
	}
	return id
}

type describer struct{ schemas map[string]any }

// schema describes a type; structs go to the components.
func (d *describer) schema(t reflect.Type) map[string]any {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return map[string]any{"type": "string", "format": "date-time"}
	case t.Kind() == reflect.Pointer:
		s := d.schema(t.Elem())
		if kind, ok := s["type"].(string); ok {
			s["type"] = []string{kind, "null"}
		}
		return s
	case t.Kind() == reflect.Slice:
		return map[string]any{"type": "array", "items": d.schema(t.Elem())}
	case t.Kind() == reflect.Struct:
		if d.schemas[t.Name()] == nil {
			d.schemas[t.Name()] = map[string]any{} // against endless recursion
			properties := map[string]any{}
			d.fields(t, properties)
			d.schemas[t.Name()] = map[string]any{"type": "object", "properties": properties}
		}
		return map[string]any{"$ref": "#/components/schemas/" + t.Name()}
	}
	kind := map[reflect.Kind]string{reflect.String: "string", reflect.Bool: "boolean", reflect.Float64: "number"}[t.Kind()]
	if kind == "" {
		kind = "integer"
	}
	return map[string]any{"type": kind}
}

func (d *describer) fields(t reflect.Type, properties map[string]any) {
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			d.fields(f.Type, properties)
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		s := d.schema(f.Type)
		if doc := f.Tag.Get("doc"); doc != "" {
			s["description"] = doc
		} else {
			panic("field " + t.Name() + "." + f.Name + " has no doc tag")
		}
		properties[name] = s
	}
}
