// Browsers start no worker from a page that was opened from the disk. There the search runs in a hidden frame instead, which looks like a worker from outside.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(address) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.title = "search";
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (said) => {
        const data = structuredClone(said); // as a real worker has it: what one side changes, the other does not see
        setTimeout(() => this.onmessage?.(new MessageEvent("message", { data })));
      };
      const script = inside.document.createElement("script");
      script.src = new URL(address, location.href).href;
      this.ready = new Promise((resolve, reject) => {
        script.onload = resolve;
        script.onerror = reject;
      });
      this.ready.catch(() => this.onerror?.(new Event("error")));
      inside.document.head.append(script);
    }

    postMessage(said) {
      const data = structuredClone(said);
      const inside = this.frame.contentWindow;
      this.ready.then(() => inside.dispatchEvent(new MessageEvent("message", { data })), () => {});
    }

    terminate() {
      this.frame.remove();
    }
  };
}
