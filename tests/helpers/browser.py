"""A headless Chromium that looks at the page, and the actions of a user there."""

import base64
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

WAIT_S = 20
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


def new_driver(profile: Path) -> webdriver.Chrome:
    """Start Chromium with a profile of its own."""
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in (*FLAGS, f"--user-data-dir={profile}", "--window-size=1180,900"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))


class Page:
    """The page of one service."""

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver = driver
        self._url = url

    def begin(self) -> None:
        """Forget what the tab has kept."""
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.driver.set_window_size(1180, 900)
        self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        self.driver.get(f"{self._url}/")
        self.driver.execute_script("sessionStorage.clear(); localStorage.clear()")

    def open(self, path: str = "#/") -> None:
        """Open a view afresh."""
        self.driver.get("about:blank")
        self.driver.get(f"{self._url}/{path}")

    def topic(self, topic: str, view: str = "schedule") -> None:
        """Open a view of a topic of the default namespace."""
        self.open(f"#/topic/public/default/{topic}/{view}")

    def use(self, *, dark: bool = False, narrow: bool = False) -> None:
        """Choose what the browser prefers, and how wide its window is."""
        value = "dark" if dark else "light"
        features = [{"name": "prefers-color-scheme", "value": value}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        width = 390 if narrow else 1180
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def one(self, selector: str) -> WebElement:
        """Wait for an element."""
        return WebDriverWait(self.driver, WAIT_S).until(lambda driver: driver.find_element(By.CSS_SELECTOR, selector))

    def all(self, selector: str) -> list[WebElement]:
        """Return what there is now."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def until(self, script: str, *arguments: Any) -> Any:
        """Wait until an expression of the page is true."""
        return WebDriverWait(self.driver, WAIT_S).until(
            lambda driver: driver.execute_script(f"return {script}", *arguments), script
        )

    def text_has(self, selector: str, text: str) -> None:
        """Wait until an element says something."""
        self.until(
            "[...document.querySelectorAll(arguments[0])].some(e => e.textContent.includes(arguments[1]))",
            selector,
            text,
        )

    def press(self, text: str, within: str = "body") -> None:
        """Click the first button or link that begins with a text, once it can be."""
        find = (
            "[...document.querySelector(arguments[0])?.querySelectorAll('button, a') ?? []]"
            ".find(e => e.textContent.startsWith(arguments[1]) && !e.disabled && e.checkVisibility())"
        )
        self.until(find, within, text).click()

    def picture(self, file: Path) -> None:
        """Take a screenshot of all of the page."""
        taken = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
        file.write_bytes(base64.b64decode(taken["data"]))

    def fits(self) -> bool:
        """Whether no part is wider than its place; on a narrow screen none may even be scrolled sideways."""
        script = """
            const wide = [...document.querySelectorAll("body *")].filter(e => e.checkVisibility() && (
                e.getBoundingClientRect().right > innerWidth + 1
                || (e.matches(".scroll") && e.scrollWidth > e.clientWidth)));
            return document.documentElement.scrollWidth <= innerWidth && (innerWidth > 600 || !wide.length);
        """
        found: bool = self.driver.execute_script(script)
        return found

    def complaints(self) -> list[str]:
        """Return what the console was told since the last time, warnings and worse."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
