// Tests how an app handles a Redeploy of vm-0, through the emulator's control API.
// Start the app first, with FOREWARN_ENDPOINT set. FOREWARN_SERVER is the emulator's operator port.
// As a Go test, put the body of main into a TestXxx and fail with t.Fatal.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
)

func post(path string, body any, answer any) {
	server := os.Getenv("FOREWARN_SERVER")
	if server == "" {
		server = "http://127.0.0.1:8170"
	}
	encoded, _ := json.Marshal(body)
	request, err := http.NewRequest("POST", server+path, bytes.NewReader(encoded))
	if err != nil {
		fail(err.Error())
	}
	request.Header.Set("Content-Type", "application/json")
	if token := os.Getenv("FOREWARN_TOKEN"); token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		fail(err.Error())
	}
	defer response.Body.Close()
	content, _ := io.ReadAll(response.Body)
	if response.StatusCode >= 400 { // a failed expectation answers 409, with the reason and the timeline
		fail(string(content))
	}
	if err := json.Unmarshal(content, answer); err != nil {
		fail(err.Error())
	}
}

func expect(what map[string]any) {
	var ignored map[string]any
	post("/v1/emulator/expect", what, &ignored)
}

func fail(message string) {
	fmt.Fprintln(os.Stderr, message)
	os.Exit(1)
}

func main() {
	var maintenance struct {
		Waves []struct{ Events []struct{ ID string } }
	}
	var ignored map[string]any
	post("/v1/maintenances", map[string]any{
		"type": "Redeploy", "targets": map[string]any{"machines": []string{"vm-0"}},
	}, &maintenance)
	event := maintenance.Waves[0].Events[0].ID
	expect(map[string]any{"what": "seen", "event": event, "machine": "vm-0", "within_s": 10})
	post("/v1/clock/advance", map[string]any{"seconds": 120}, &ignored)
	expect(map[string]any{"what": "approval", "event": event, "machine": "vm-0", "times": 1, "within_s": 10})
	expect(map[string]any{"what": "seen", "event": event, "machine": "vm-0", "status": "Started", "within_s": 10})
	post("/v1/orders/"+event+"/finish", map[string]any{}, &ignored)
	expect(map[string]any{"what": "no-more"})
	fmt.Println("vm-0 saw the Redeploy, approved it once, and saw it start")
}
